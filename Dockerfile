FROM python:3.14-slim AS build
WORKDIR /src
RUN python -m venv /opt/idalloc
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY requirements/server.txt requirements/
RUN /opt/idalloc/bin/pip install --require-hashes --requirement requirements/server.txt
COPY LICENSE README.md pyproject.toml ./
COPY client client
COPY protos protos
COPY server server
COPY third_party third_party
RUN /opt/idalloc/bin/pip install --no-deps --no-build-isolation .

FROM python:3.14-slim
COPY --from=build /opt/idalloc /opt/idalloc
RUN useradd --system --uid 10001 idalloc && install --directory --owner=idalloc --mode=750 /var/lib/idalloc
ENV PATH=/opt/idalloc/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    IDALLOC_LISTEN=0.0.0.0:50051 \
    IDALLOC_STORE=sqlite:///var/lib/idalloc/idalloc.db
USER 10001
# The counters live here: a container without a lasting volume begins again at 1.
# Mount a folder, never the database file alone: SQLite keeps files beside it.
VOLUME /var/lib/idalloc
# gRPC, and HTTP if IDALLOC_HTTP_LISTEN is 0.0.0.0:50080.
EXPOSE 50051 50080
# A client: where the server speaks TLS, it needs IDALLOC_CA and IDALLOC_SERVER_NAME.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["idalloc", "health"]
ENTRYPOINT ["idalloc"]
CMD ["serve"]
