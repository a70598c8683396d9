# syntax=docker/dockerfile:1
# The gateway. Build it from the repository: docker build -f docker/gateway.Dockerfile -t pointsman .
FROM python:3.12.12-slim-bookworm AS build
WORKDIR /build
# What it needs is a layer of its own, built anew only when the lock changes (scripts/lock).
COPY docker/locks/gateway.txt ./
RUN python -m venv --without-pip /opt/pointsman
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/pointsman/bin/python install --require-hashes -r gateway.txt
# The package, built by locked tools in an environment of their own.
COPY docker/locks/build.txt docker/sbom.py ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv --without-pip /build/tools && \
    pip --python /build/tools/bin/python install --require-hashes -r build.txt
COPY pyproject.toml README.md LICENSE ./
COPY gateway ./gateway
COPY engines ./engines
COPY scripts/commit_hook.py ./scripts/
# What `pointsman --version` names: --build-arg SOURCE_COMMIT=$(git rev-parse --short=12 HEAD)
ARG SOURCE_COMMIT=""
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /build/tools/bin/python wheel --no-deps --no-build-isolation --wheel-dir /build/wheels . && \
    pip --python /opt/pointsman/bin/python install --no-deps --no-index /build/wheels/*.whl && \
    /opt/pointsman/bin/python sbom.py > /opt/pointsman/sbom.cdx.json
RUN mkdir /state

# The same base without a compiler, without pip's cache, and without the sources.
FROM python:3.12.12-slim-bookworm
COPY --from=build /opt/pointsman /opt/pointsman
# Where an embedded Redis keeps its file, if no other is named, and the admin key; nothing else is ever written.
COPY --from=build --chown=10001:10001 /state /var/lib/pointsman
ENV PATH=/opt/pointsman/bin:$PATH \
    HOME=/var/lib/pointsman \
    POINTSMAN_DATA_DIR=/var/lib/pointsman \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/pointsman
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:8000/v2/health/live', timeout=2)"]
ENTRYPOINT ["pointsman"]
CMD ["serve", "--rules", "/etc/pointsman/rules", "--host", "0.0.0.0"]
