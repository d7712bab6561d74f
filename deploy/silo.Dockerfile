# A silo's agent, with the torch of one index: for CPUs by default.
#
# The base is pinned by its digest, which has no default: take the newest, read what changed, keep it
# with your deployment. From the repository's root:
#
#   docker buildx imagetools inspect python:3.11-slim-bookworm --format '{{.Manifest.Digest}}'
#   docker build -f deploy/silo.Dockerfile --build-arg PYTHON_DIGEST=sha256:... -t chorale/silo:1.0.0 .
#
# For GPUs, name an index of PyTorch's whose CUDA the nodes' driver knows and which holds the torch of
# constraints.txt: --build-arg TORCH_INDEX_URL=https://download.pytorch.org/whl/cu130
#
# Where everything comes from is an argument, for a build behind a mirror or without a network
# (docs/deploy-kubernetes.md, "A mirror, or no network"); pip reads those that begin with PIP_.
#
# Runs with a read-only root file system: only /tmp and /var/lib/chorale are written to.

ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm
ARG PYTHON_DIGEST
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu

FROM ${PYTHON_IMAGE}@${PYTHON_DIGEST} AS build
ARG TORCH_INDEX_URL
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
ARG PIP_CERT
# of the commit. With it pip's compiled modules hold their source's hash, not its time, so two builds are equal
ARG SOURCE_DATE_EPOCH=0
WORKDIR /src
RUN mkdir /state
# what others made comes before our own code, in layers that a fix of ours does not change
COPY constraints.txt ./
COPY deploy ./deploy
RUN python -m venv --without-pip /opt/build
RUN python -m pip --python /opt/build/bin/python install --only-binary :all: --require-hashes \
    -r deploy/requirements-build.txt
RUN python -m venv --without-pip /opt/chorale
RUN python -m pip --python /opt/chorale/bin/python install --only-binary :all: --no-deps --require-hashes \
    -r deploy/requirements-silo.txt
# that index gives these two, and CUDA's packages where its torch requires them; the lock has the rest.
# Which files it holds is its own, so no hash of them is known here
RUN python -m pip --python /opt/chorale/bin/python install --only-binary :all: -c constraints.txt \
    --prefix /opt/torch --index-url "${TORCH_INDEX_URL}" torch torchvision
COPY . .
RUN python -m pip --python /opt/build/bin/python wheel --no-deps --no-build-isolation --wheel-dir /opt/wheel .
RUN python -m pip --python /opt/chorale/bin/python install --no-deps --no-index --prefix /opt/own /opt/wheel/*.whl

FROM ${PYTHON_IMAGE}@${PYTHON_DIGEST}
ARG PYTHON_IMAGE
ARG PYTHON_DIGEST
ARG TORCH_INDEX_URL
ARG REVISION=unknown
LABEL org.opencontainers.image.title="chorale-silo" \
      org.opencontainers.image.description="An institution's side of a Chorale federation: trains on its data and masks what leaves" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="1.0.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}" \
      org.opencontainers.image.base.digest="${PYTHON_DIGEST}" \
      chorale.torch.index="${TORCH_INDEX_URL}"
COPY --from=build /opt/torch /opt/chorale
COPY --from=build /opt/chorale /opt/chorale
COPY --from=build /opt/own /opt/chorale
# a named volume takes its owner from here
COPY --from=build --chown=10001:10001 /state /var/lib/chorale
# PYTHONSAFEPATH: the working directory is writable, so no code is taken from it
ENV PATH=/opt/chorale/bin:$PATH \
    HOME=/tmp \
    NUMBA_CACHE_DIR=/tmp/numba \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/chorale
USER 10001:10001
# asks the address in endpoint.json: `directory` of the settings is this folder, as in the chart
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-m", "chorale.observability.health_check", "/var/lib/chorale/state"]
ENTRYPOINT ["chorale"]
CMD ["--help"]
