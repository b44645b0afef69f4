// A server with mutual TLS, by SVIDs of the Workload API: it greets the client that it expects.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

func main() {
	socket, client := os.Args[1], spiffeid.RequireFromString(os.Args[2])
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	address := workloadapi.WithClientOptions(workloadapi.WithAddr("unix://" + socket))
	source, err := workloadapi.NewX509Source(ctx, address)
	if err != nil {
		log.Fatal(err)
	}
	config := tlsconfig.MTLSServerConfig(source, source, tlsconfig.AuthorizeID(client))
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening at", listener.Addr())
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go greet(connection, source)
	}
}

func greet(connection net.Conn, source *workloadapi.X509Source) {
	defer connection.Close()
	secure := connection.(*tls.Conn)
	if err := secure.Handshake(); err != nil {
		log.Print(err)
		return
	}
	peer, err := x509svid.IDFromCert(secure.ConnectionState().PeerCertificates[0])
	if err != nil {
		log.Print(err)
		return
	}
	own, err := source.GetX509SVID()
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Fprintf(connection, "hello %s from %s\n", peer, own.ID)
}
