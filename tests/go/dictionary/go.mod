module github.com/guest-agent/guest-agent/tests/go/dictionary

go 1.26.0

require github.com/klauspost/compress v1.20.4
