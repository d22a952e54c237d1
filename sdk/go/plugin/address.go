package plugin

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// maxSocketPath is the longest path that the kernel takes for a unix socket, in bytes.
const maxSocketPath = 107

// Address is where a plugin listens: a unix socket that only its owner can open, or a port of the loopback addresses, which
// every user of the machine can reach.
type Address struct {
	path  string
	ports []netip.AddrPort
}

// UnixAddress is a unix socket at a path.
func UnixAddress(path string) (Address, error) {
	switch {
	case path == "" || strings.ContainsRune(path, 0):
		return Address{}, fmt.Errorf("%q is not the path of a socket: use an absolute path", path)
	case len(path) > maxSocketPath:
		return Address{}, fmt.Errorf("socket path %s has %d bytes and the kernel takes %d: use a shorter one", path, len(path), maxSocketPath)
	}
	return Address{path: path}, nil
}

// ParseAddress reads the values of --protocol and --address.
//
// [::]:PORT and 0.0.0.0:PORT, which Google's guest agent passes to every plugin, mean that port of ::1 and 127.0.0.1: the
// protocol has no authentication, so other machines must not reach it.
func ParseAddress(protocol, address string) (Address, error) {
	switch protocol {
	case "unix":
		return UnixAddress(address)
	case "tcp":
		return tcpAddress(address)
	default:
		return Address{}, fmt.Errorf("unknown protocol %q: use --protocol=unix or --protocol=tcp", protocol)
	}
}

func tcpAddress(given string) (Address, error) {
	text := given
	// Without a resolver, which could answer with any address.
	if port, ok := strings.CutPrefix(given, "localhost:"); ok {
		text = "127.0.0.1:" + port
	}
	parsed, err := netip.ParseAddrPort(text)
	if err != nil {
		return Address{}, fmt.Errorf("%q is not an address and a port: use 127.0.0.1:PORT or [::1]:PORT", given)
	}
	// An IPv4 address in the form of IPv6 is checked as the address that it stands for.
	ip := parsed.Addr().Unmap()
	switch {
	case ip.IsUnspecified():
		loopback := []netip.Addr{netip.IPv6Loopback(), netip.AddrFrom4([4]byte{127, 0, 0, 1})}
		address := Address{}
		for _, ip := range loopback {
			address.ports = append(address.ports, netip.AddrPortFrom(ip, parsed.Port()))
		}
		return address, nil
	case !ip.IsLoopback():
		return Address{}, fmt.Errorf("%s can be reached from other machines and the plugin protocol has no authentication: "+
			"use 127.0.0.1:%d, or better --protocol=unix", given, parsed.Port())
	}
	return Address{ports: []netip.AddrPort{netip.AddrPortFrom(ip, parsed.Port())}}, nil
}

// Target is the address as a target of gRPC: the first one where there are two.
func (a Address) Target() string {
	if a.path != "" {
		return "unix:" + a.path
	}
	if len(a.ports) == 0 {
		return ""
	}
	return "dns:///" + a.ports[0].String()
}

// String names the address for people.
func (a Address) String() string {
	if a.path != "" {
		return "unix:" + a.path
	}
	names := make([]string, 0, len(a.ports))
	for _, port := range a.ports {
		names = append(names, "tcp:"+port.Addr().String()+" port "+strconv.Itoa(int(port.Port())))
	}
	return strings.Join(names, " and ")
}
