from tests.fuzz.conftest import tried as tried
