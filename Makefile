# Every target works from a fresh clone.
PYTHON ?= /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: proto
proto:
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc --proto_path=proto --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. proto/advisor/v1/*.proto
