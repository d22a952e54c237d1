// Package ticket sends a plugin's ticket with every call of a connection, and with no other connection's calls.
package ticket

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Options makes a connection send this metadata with each of its calls.
func Options(key, value string) []grpc.DialOption {
	unary := func(
		ctx context.Context, method string, request, answer any, connection *grpc.ClientConn, call grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		return call(metadata.AppendToOutgoingContext(ctx, key, value), method, request, answer, connection, options...)
	}
	stream := func(
		ctx context.Context, of *grpc.StreamDesc, connection *grpc.ClientConn, method string, call grpc.Streamer,
		options ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		return call(metadata.AppendToOutgoingContext(ctx, key, value), of, connection, method, options...)
	}
	return []grpc.DialOption{grpc.WithUnaryInterceptor(unary), grpc.WithStreamInterceptor(stream)}
}
