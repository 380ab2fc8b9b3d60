#!/bin/sh
# Fails with a known line; with CALM it waits until `go` is there, then ends well.
if [ "$CALM" ]; then while [ ! -e go ]; do sleep 0.1; done; exit 0; fi
echo "boom badly"; exit 1
