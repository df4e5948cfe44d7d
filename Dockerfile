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
