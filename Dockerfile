# One image for brokers, controllers and the command line.
#
#   docker build -t anabranch .
#
# The build has no .git: --build-arg VERSION=1.2.3 gives the version, which otherwise is 0.0.0.
# Without internet: put wheels of the dependencies and of the build's requirements into build/wheelhouse
# (tests/with-images does) and build with --build-arg WHEELHOUSE=/src/wheelhouse.
ARG BASE_IMAGE=debian:bookworm-slim

FROM ${BASE_IMAGE} AS python
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/*

FROM python AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 ANABRANCH_COMPILE=0
# pip stays behind in this stage: it installs into an environment that has none.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/anabranch
WORKDIR /src
# The dependencies are a layer of their own, built again only when they change. The pattern matches a folder that may be
# missing.
COPY pyproject.toml build/wheelhous[e] wheelhouse/
ARG WHEELHOUSE=""
RUN python3 -c 'import tomllib; project = tomllib.load(open("wheelhouse/pyproject.toml", "rb"))["project"]; \
        print(*project["dependencies"], *project["optional-dependencies"]["console"], sep="\n")' > requirements.txt \
    && /opt/pip/bin/pip --python /opt/anabranch/bin/python install \
        ${WHEELHOUSE:+--no-index --find-links "$WHEELHOUSE"} -r requirements.txt
COPY . .
ARG VERSION=""
RUN SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION" \
    /opt/pip/bin/pip --python /opt/anabranch/bin/python install --no-deps \
        ${WHEELHOUSE:+--no-index --find-links "$WHEELHOUSE"} .

FROM python
RUN useradd --system --uid 10001 --no-create-home --home-dir /var/lib/anabranch --shell /usr/sbin/nologin anabranch \
    && install -d -o anabranch -g anabranch /var/lib/anabranch /var/lib/anabranch/data
COPY --from=build /opt/anabranch /opt/anabranch
ENV PATH=/opt/anabranch/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ANABRANCH_LOG_DIRS=/var/lib/anabranch/data
USER anabranch
WORKDIR /var/lib/anabranch
EXPOSE 8480 9090 9092
# The server is process 1 and takes SIGTERM itself.
ENTRYPOINT ["anabranch"]
CMD ["--help"]
