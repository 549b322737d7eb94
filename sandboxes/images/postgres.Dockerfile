# The image that postgres.sh makes, for whoever can pull its base. From the repository's root:
#   docker build -t mcpgym/postgres -f sandboxes/images/postgres.Dockerfile sandboxes/images
FROM debian:bookworm-slim
RUN groupadd -g 70 postgres \
 && useradd -u 70 -g 70 -d /data -s /bin/sh postgres \
 && mkdir -p /etc/postgresql-common \
 && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf \
 && apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -m 700 -o postgres -g postgres /data /template \
 && install -d -m 1777 /run/postgresql
COPY postgres-start /usr/bin/postgres-start
USER 70:70
ENV PATH=/usr/lib/postgresql/15/bin:/usr/bin:/bin
RUN TZ=UTC LC_ALL=C.UTF-8 initdb -D /template -U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync --wal-segsize=1
ENTRYPOINT ["/usr/bin/postgres-start"]
