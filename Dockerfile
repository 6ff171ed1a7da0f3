# An image with this project, for `python -m replicator.launch --kubernetes`. Nobody has built it yet.
FROM python:3.11-slim
WORKDIR /project
COPY . .
# For GPUs, write '.[rl,gpu]'.
RUN pip install --no-cache-dir '.[rl]'
