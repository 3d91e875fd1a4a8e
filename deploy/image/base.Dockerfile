# Debian 13 with what the agent server and the agents' shell need. DEBIAN is a pulled or a debootstrapped
# root: the build script chooses.
ARG DEBIAN=debian:trixie-slim
FROM ${DEBIAN}

RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      ca-certificates curl git less openssh-client procps python-is-python3 python3 \
      python3-venv ripgrep tmux unzip \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/*

# Certificates this machine trusts beyond Debian's own: a private authority must be known both to the
# build and to whatever an agent later fetches. The folder holds only a README where there are none.
COPY extra-ca/ /usr/local/share/ca-certificates/extra/
RUN update-ca-certificates

# libtmux refuses to run in the POSIX locale.
ENV LANG=C.UTF-8 \
    LC_ALL=C.UTF-8
