# The service: docker build -t relu-deploy . ; see docs/service.md
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY deploy deploy
COPY fhe fhe
COPY quantization quantization
COPY analog analog
RUN python -m venv /opt/relu-deploy \
 && /opt/relu-deploy/bin/pip install --no-cache-dir ".[ckks,ternary,serve]"

FROM python:3.11-slim
COPY --from=build /opt/relu-deploy /opt/relu-deploy
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/relu-deploy service \
 && install -d -o service -m 0700 /var/lib/relu-deploy/keys
USER service
ENV PATH=/opt/relu-deploy/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/tmp/numba \
    RELU_DEPLOY_HOST=0.0.0.0 \
    RELU_DEPLOY_METRICS_HOST=0.0.0.0 \
    RELU_DEPLOY_STORE=/var/lib/relu-deploy/keys
VOLUME /var/lib/relu-deploy/keys
EXPOSE 8080 8082
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=2s --start-period=60s CMD ["python", "-c", \
  "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ.get('RELU_DEPLOY_PORT', '8080')}/v2/health/ready\")"]
ENTRYPOINT ["relu-deploy"]
CMD ["serve", "--help"]
