// Both ends of RFC 9842 by another implementation of zstd, in Go. It has the commands of
// tests/python/dictionary.py.
//
//	client URL FILE   fetches URL as one who has FILE; prints the SHA-256 of what comes out
//	server OLD NEW    serves /artifacts/echo/old and /artifacts/echo/new; prints its address and then
//	                  how each answer was coded
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

var magic = []byte{0x5e, 0x2a, 0x4d, 0x18, 0x20, 0, 0, 0}

// name is how requests call a dictionary: a byte sequence of RFC 9651 with its SHA-256.
func name(content []byte) string {
	digest := sha256.Sum256(content)
	return ":" + base64.StdEncoding.EncodeToString(digest[:]) + ":"
}

// header is what a delta begins with.
func header(dictionary []byte) []byte {
	digest := sha256.Sum256(dictionary)
	return append(bytes.Clone(magic), digest[:]...)
}

func client(url, path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept-Encoding", "dcz")
	request.Header.Set("Available-Dictionary", name(old))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if coding := answer.Header.Get("Content-Encoding"); coding != "dcz" {
		return fmt.Errorf("the answer (%s) is coded as %q", answer.Status, coding)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	frame, found := bytes.CutPrefix(body, header(old))
	if !found {
		return errors.New("the delta does not begin with the magic bytes and the digest")
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderDictRaw(0, old))
	if err != nil {
		return err
	}
	defer decoder.Close()
	whole, err := decoder.DecodeAll(frame, nil)
	if err != nil {
		return err
	}
	fmt.Printf("%x\n", sha256.Sum256(whole))
	return nil
}

func server(oldPath, newPath string) error {
	old, err := os.ReadFile(oldPath)
	if err != nil {
		return err
	}
	changed, err := os.ReadFile(newPath)
	if err != nil {
		return err
	}
	encoder, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderDictRaw(0, old))
	if err != nil {
		return err
	}
	delta := encoder.EncodeAll(changed, header(old))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", listener.Addr())
	return http.Serve(listener, http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		body, coding := changed, "identity"
		switch {
		case strings.HasSuffix(request.URL.Path, "/old"):
			body = old
		case strings.Contains(request.Header.Get("Accept-Encoding"), "dcz") &&
			request.Header.Get("Available-Dictionary") == name(old):
			body, coding = delta, "dcz"
			answer.Header().Set("Content-Encoding", coding)
		}
		answer.Header().Set("Use-As-Dictionary", `match="/artifacts/echo/*"`)
		answer.Header().Set("Vary", "accept-encoding, available-dictionary")
		answer.Header().Set("Content-Length", strconv.Itoa(len(body)))
		fmt.Println(coding, len(body))
		// Who goes away meanwhile has no use for the rest.
		_, _ = answer.Write(body)
	}))
}

func run(arguments []string) error {
	if len(arguments) == 3 {
		switch arguments[0] {
		case "client":
			return client(arguments[1], arguments[2])
		case "server":
			return server(arguments[1], arguments[2])
		}
	}
	return errors.New("usage: dictionary client URL FILE | server OLD NEW")
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
