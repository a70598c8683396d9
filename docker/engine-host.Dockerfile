# syntax=docker/dockerfile:1
# The engine host on a CPU. Build it from the repository: docker build -f docker/engine-host.Dockerfile -t pointsman-host .
FROM python:3.12.12-slim-bookworm AS build
WORKDIR /build
# Backends beyond python's: names of pyproject.toml's extras. "onnx torch llm" also serves PyTorch models and language
# models, and is ten times as large. Only the default is locked (scripts/lock).
ARG EXTRAS="onnx"
# Another index beside PyPI: https://download.pytorch.org/whl/cpu has torch without CUDA, whose libraries no CPU needs.
ARG PIP_EXTRA_INDEX_URL=""
COPY pyproject.toml docker/requirements.py docker/locks/engine-host.txt ./
RUN if [ "$EXTRAS" != onnx ]; then python requirements.py pyproject.toml $EXTRAS > engine-host.txt; fi && \
    python -m venv --without-pip /opt/pointsman
# A file with hashes makes pip require them of all packages.
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/pointsman/bin/python install -r engine-host.txt
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
RUN mkdir /models

FROM python:3.12.12-slim-bookworm
COPY --from=build /opt/pointsman /opt/pointsman
# A volume that is mounted here belongs to the user below, so that `samples /models` can fill it.
COPY --from=build --chown=10001:10001 /models /models
ENV PATH=/opt/pointsman/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /models
EXPOSE 8100 8101 8102
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:8100/v2/health/ready', timeout=2)"]
ENTRYPOINT ["pointsman"]
CMD ["host", "--model-repository", "/models", "--host", "0.0.0.0"]
