"""Authentication, authorization, limits and the audit."""
