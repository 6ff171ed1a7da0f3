# An image with this project, for `replicator launch --kubernetes`.
# Built with buildah 1.28, `--isolation=chroot`, on a Debian 12 with Python 3.11 in place of the
# first line's image, which could not be downloaded there. Docker has not built it.
FROM python:3.11-slim
# OpenGL, for the frames of agents; without a GPU's driver, Mesa's.
RUN apt-get update && apt-get install -y --no-install-recommends libegl1 libgl1 \
  && rm -rf /var/lib/apt/lists/*
WORKDIR /project
COPY . .
# For GPUs, write '.[rl,gpu]'.
RUN pip install --no-cache-dir '.[rl]'
