# docker build -t unavez . && docker run -v unavez:/data -v $PWD/unavez.yaml:/data/unavez.yaml:ro -p 8080:8080 unavez serve
# unavez.yaml has to say listen: 0.0.0.0:8080; without it the program listens inside the container only.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -o /out/unavez ./cmd/unavez && mkdir /out/data
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build --chown=65532:65532 /out /
USER 65532:65532
WORKDIR /data
ENTRYPOINT ["/unavez"]
