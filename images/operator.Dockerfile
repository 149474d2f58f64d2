# The image of the operator. From the project's folder:
#     docker build -f images/operator.Dockerfile -t joinery-operator .
ARG BASE=debian:12.15-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251

# The first two stages are the same for both images, so that they are built once.
FROM ${BASE} AS base
# Debian's base images name, in a comment above each address, the snapshot of the archive that they are made from. From here
# on apt reads that snapshot, so BASE pins all packages. What a snapshot says of its own age is out of date by design.
RUN sources=/etc/apt/sources.list.d/debian.sources \
    && { test "$(grep -c '^# http' $sources)" = "$(grep -c '^URIs:' $sources)" \
        || { echo "joinery: $sources of the base image names no snapshot of Debian's archive" >&2; exit 1; }; } \
    && sed -i '/^# http/ { s/^#/URIs:/; n; d }' $sources \
    && echo 'Acquire::Check-Valid-Until "false";' > /etc/apt/apt.conf.d/snapshot
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates python3 tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log

FROM base AS pip
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        python3-hatchling python3-pip python3-setuptools python3-wheel \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

FROM pip AS dependencies
# For who builds behind a mirror: --build-arg PIP_INDEX_URL=..., PIP_CERT=... (a file in the base image).
ARG PIP_INDEX_URL
ARG PIP_CERT
COPY requirements/operator.txt /build/
RUN python3 -m pip wheel --quiet --require-hashes --no-build-isolation --wheel-dir /build/wheels -r /build/operator.txt \
    && python3 -m venv --without-pip /opt/joinery \
    && python3 -m pip --python /opt/joinery/bin/python install --quiet --no-deps --no-index /build/wheels/*.whl \
    && rm -r /build

FROM base AS assembled
RUN useradd --uid 1000 --gid 0 --create-home --shell /usr/sbin/nologin joinery
LABEL org.opencontainers.image.title="joinery-operator" \
      org.opencontainers.image.description="Kubernetes operator for Joinery's StreamJoin and SessionWindow" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/joinery/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/home/joinery \
    USER=joinery \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1
COPY --from=dependencies /opt/joinery /opt/joinery
COPY LICENSE /opt/joinery/
USER 1000
WORKDIR /tmp
ENTRYPOINT ["/usr/bin/tini", "-s", "--"]
CMD ["joinery-operator"]

FROM pip AS code
COPY runtime/pyproject.toml /build/runtime/
COPY runtime/src /build/runtime/src
COPY operator/pyproject.toml /build/operator/
COPY operator/src /build/operator/src
COPY --from=dependencies /opt/joinery/pyvenv.cfg /opt/joinery/
COPY --from=dependencies /opt/joinery/bin /opt/joinery/bin
# The operator needs of the runtime what reads resources; its command stays out, since it could not run a job here.
# Debian's hatchling refuses classifiers that it does not know, such as Python 3.13; only a package index reads them.
RUN sed -i '/"Programming Language :: Python :: 3[.]/d' /build/runtime/pyproject.toml /build/operator/pyproject.toml \
    && python3 -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /build/wheels /build/runtime /build/operator \
    && python3 -m pip --python /opt/joinery/bin/python install --quiet --no-deps --no-index --root /layer \
        /build/wheels/*.whl \
    && rm /layer/opt/joinery/bin/joinery

# Our own code is the last layer, alone: with the rest in a cache a change of it costs seconds.
FROM assembled
COPY --from=code /layer /
