.PHONY: run test lint bench

# The orders example on loopback, or FILE=unavez.yaml.
run:
	go run ./cmd/unavez serve $(FILE)

test:
	scripts/test

lint:
	scripts/lint

# Peers side by side; bench/README.md says what each figure means.
bench:
	cd bench && GOWORK=off go test -run '^$$' -bench . -benchmem ./...
