# Everything here needs Go and make; nothing needs cgo or a network beyond the
# module download.

export CGO_ENABLED = 0

ALERT ?= Pod payment-worker-7d9f8b-x2k9p is in CrashLoopBackOff with exit code 137 (OOMKilled)
export ALERT

MODELS ?= .models

.PHONY: build demo test test-arm64 race vet test-aborts test-schedules test-models models eval deploy-check container-check s3-check temporal test-temporal clean

build: bin/coppice

bin/coppice: FORCE
	@go build -o bin/coppice ./cmd/coppice
FORCE:

# demo runs examples/triage on the embedded model. ALERT="..." make demo for
# another alert, ARGS="--json" for data.
demo: build
	@./bin/coppice run triage --input "alert=$$ALERT" $(ARGS)

test:
	go test $(TESTFLAGS) ./...

# test-arm64 runs the tests of kernels and models for arm64 under QEMU (Debian:
# qemu-user-static), with the kernels for NEON and without: what they compute is the
# same there, bit for bit.
ARM64 ?= compute model
test-arm64:
	mkdir -p bin
	for p in $(ARM64); do GOARCH=arm64 CGO_ENABLED=0 go test -c -o bin/$$p.arm64 ./backend/$$p && \
		for c in go neon; do (cd backend/$$p && COPPICE_CPU=$$c qemu-aarch64-static ../../bin/$$p.arm64 -test.short \
			-test.run 'Kernel|Gemm|Attend|Argument|PartsOfARow|TestChains|TestTop|Tier|Families|Allocation|Rope|Reference') || exit 1; done; done

race:
	CGO_ENABLED=1 go test -race $(TESTFLAGS) ./...

vet:
	@test -z "$$(gofmt -l .)" || { echo "not gofmt'd:"; gofmt -l .; exit 1; }
	go vet ./...

# models fetches the small real models that test-models compares with
# llama.cpp's recorded answers.
models:
	.ci/models $(MODELS) smollm2 gemma3 qwen25

test-models: models
	COPPICE_MODELS=$(abspath $(MODELS)) COPPICE_SHARED=$(or $(COPPICE_SHARED),$(abspath $(wildcard ../shared))) \
		go test -count=1 -timeout 45m -run 'Golden|Real|LlamaCpp|Template' ./backend/... ./cmd/...

# test-aborts gives up requests at random steps, 500 at a time, for as long as FOR
# says, and counts the pages after every step.
FOR ?= 10m
test-aborts:
	COPPICE_ABORTS=$(FOR) go test -count=1 -timeout 2h -run TestAbortsAtRandomSteps ./backend/engine

# test-schedules runs random requests on engines of random shape, with aborts, flushes,
# preemption and faults, under the race detector, and compares each result with that of
# the request alone: so many rounds with a fake model, and as many with small real ones.
# SEED is that of the first round. 10,000 of each take about an hour of two cores.
SCHEDULES ?= 10000
SEED ?= 0
test-schedules:
	cd backend/engine && CGO_ENABLED=1 COPPICE_SCHEDULES=$(SCHEDULES) COPPICE_SCHEDULES_FROM=$(SEED) go test -race -count=1 -timeout 24h -run TestRandomSchedules

# eval measures the embedded model on 200 alerts with wording and names that
# its training never saw, through the whole program.
eval:
	go run ./examples/triage/eval $(ARGS)

# deploy-check reads the manifests of docs/deploy/kubernetes with Kubernetes' types,
# and the systemd unit where systemd is.
deploy-check:
	cd docs/deploy/check && go test ./...
	@if command -v systemd-analyze >/dev/null; then sed 's,/usr/local/bin/coppice,/bin/true,' docs/deploy/systemd/coppice.service >$${TMPDIR:-/tmp}/coppice-check.service && systemd-analyze verify --man=no $${TMPDIR:-/tmp}/coppice-check.service; fi

# s3-check keeps payloads on an S3 server of somebody else, run by the test.
s3-check:
	cd workflows/s3/check && go test ./...

# container-check runs what docs/deploy/Containerfile makes without a container
# engine, as root. BINARY=FILE takes a binary that is there.
container-check:
	BINARY=$(BINARY) docs/deploy/check/container

# temporal builds coppice-temporal, a Temporal server over SQLite for one machine,
# where 'coppice run --durable' looks for it. It is a module of its own. The first
# build takes 10 to 20 minutes and 2.6 GB of memory.
TEMPORAL ?= $(shell go env GOCACHE)/../coppice/temporal/coppice-temporal

temporal:
	@mkdir -p $(dir $(TEMPORAL))
	cd workflows/temporal-dev && go build -trimpath -ldflags '-s -w' -o $(TEMPORAL) .

# test-temporal runs durable programs on a real server, and kills it, its workers,
# both, and the engine, at random moments. KILLS=100 PROGRAMS=1000 STEPS=20000 for the
# long form, which takes about an hour of two cores. RUN=TestServerKilled for one of the
# tests.
KILLS ?= 5
PROGRAMS ?= 150
STEPS ?= 200
test-temporal: temporal
	COPPICE_TEMPORAL=$(TEMPORAL) COPPICE_KILLS=$(KILLS) COPPICE_PROGRAMS=$(PROGRAMS) COPPICE_STEPS=$(STEPS) go test -count=1 -timeout 120m -tags durable -run '$(RUN)' ./workflows
	COPPICE_TEMPORAL=$(TEMPORAL) go test -count=1 -timeout 60m -tags durable -run TestDurable ./cmd/coppice

clean:
	rm -rf bin
