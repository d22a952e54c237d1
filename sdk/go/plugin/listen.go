package plugin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

const (
	// backlog is how many connections may wait to be accepted. Only the agent connects.
	backlog = 64
	// portsTried is how many ports of the kernel's choice are tried for one that is free on both loopback addresses.
	portsTried = 16
)

// listening is an address with its sockets.
type listening struct {
	sockets []net.Listener
	address Address
	remove  func() // the file of a unix socket, unless another process has made one there since
}

func listen(address Address) (*listening, error) {
	if address.path != "" {
		return listenUnix(address)
	}
	if len(address.ports) == 0 {
		return nil, errors.New("there is no address to listen on")
	}
	for tried := 1; ; tried++ {
		made, err := listenTCP(address.ports)
		chosen := address.ports[0].Port() == 0
		// The kernel may choose a port that is free on one of the addresses only.
		if err == nil || !chosen || tried == portsTried || !errors.Is(err, syscall.EADDRINUSE) {
			return made, err
		}
	}
}

// listenTCP listens on one port of all addresses that the machine has. A port that another process has on one of them is an
// error: the agent could connect to that process, and would send it the plugin's configuration.
func listenTCP(ports []netip.AddrPort) (*listening, error) {
	made := &listening{remove: func() {}}
	var missing error
	port := ports[0].Port()
	for _, wanted := range ports {
		socket, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(wanted.Addr(), port)))
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			missing = err
			continue
		}
		if err != nil {
			made.close()
			return nil, fmt.Errorf("cannot listen on %s: %w", wanted, err)
		}
		real := socket.Addr().(*net.TCPAddr).AddrPort()
		port = real.Port()
		made.sockets = append(made.sockets, socket)
		made.address.ports = append(made.address.ports, netip.AddrPortFrom(wanted.Addr(), port))
	}
	if len(made.sockets) == 0 {
		return nil, fmt.Errorf("cannot listen on %s: %w", ports[0], missing)
	}
	return made, nil
}

// listenUnix makes a socket that is its owner's alone before anybody can connect; the umask of the process stays as it is.
func listenUnix(address Address) (*listening, error) {
	if err := removeStale(address.path); err != nil {
		return nil, err
	}
	socket, err := ownSocket(address.path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	made, err := os.Lstat(address.path)
	if err != nil {
		_ = socket.Close() // the first error is the one to report
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	remove := func() {
		if now, err := os.Lstat(address.path); err == nil && os.SameFile(made, now) {
			_ = os.Remove(address.path) // a file that stays is stale, and the next start replaces it
		}
	}
	return &listening{sockets: []net.Listener{socket}, address: address, remove: remove}, nil
}

// ownSocket binds, restricts and only then listens: nobody can connect in between.
func ownSocket(path string) (net.Listener, error) {
	// No child that is started in between may have the socket.
	syscall.ForkLock.RLock()
	socket, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(socket)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(socket), path)
	defer file.Close() // the listener has a copy
	if err := syscall.SetNonblock(socket, true); err != nil {
		return nil, err
	}
	if err := syscall.Bind(socket, &syscall.SockaddrUnix{Name: path}); err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	if err := syscall.Listen(socket, backlog); err != nil {
		return nil, err
	}
	return net.FileListener(file)
}

// removeStale removes the socket of an earlier process, and leaves everything else alone.
func removeStale(path string) error {
	found, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot replace the stale socket %s: %w", path, err)
	}
	if found.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket: it was left alone; use another path", path)
	}
	connection, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = connection.Close()
	}
	if err == nil || !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("another process listens on %s: end it first or use another path", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot replace the stale socket %s: %w", path, err)
	}
	return nil
}

func (l *listening) close() {
	for _, socket := range l.sockets {
		_ = socket.Close() // closed twice where the server did it
	}
	l.remove()
}
