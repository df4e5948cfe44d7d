.PHONY: run test lint bench

# The orders example on loopback, or FILE=unavez.yaml.
run:
	go run ./cmd/unavez serve $(FILE)

test:
	scripts/test

lint:
	scripts/lint

# Each variant beside the same work without it, as ratios; bench/main.go names the parts.
bench:
	cd bench && GOWORK=off go run . all
