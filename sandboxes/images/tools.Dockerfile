# The image that tools.sh makes, for whoever can pull its base. From the repository's root:
#   docker build -t mcpgym/tools -f sandboxes/images/tools.Dockerfile sandboxes/images
FROM debian:bookworm-slim AS linters
RUN apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3-pip
COPY linters.txt /
RUN python3 -m pip install -q --no-deps --only-binary :all: --target /tools -r /linters.txt

FROM debian:bookworm-slim
RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3 \
 && rm -rf /var/lib/apt/lists/* \
 && mkdir /work
COPY --from=linters /tools/bin /tools/bin
USER 65534:65534
ENV PATH=/tools/bin:/usr/bin
WORKDIR /work
CMD ["/bin/sh"]
