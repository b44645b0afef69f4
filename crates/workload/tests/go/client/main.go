// A client with mutual TLS, by SVIDs of the Workload API: it calls the server that it expects, and calls again
// when it has another SVID.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc/status"
)

func main() {
	socket, at, server := os.Args[1], os.Args[2], spiffeid.RequireFromString(os.Args[3])
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	address := workloadapi.WithAddr("unix://" + socket)
	own, err := workloadapi.FetchX509SVID(ctx, address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("fetched", own.ID)
	bundles, err := workloadapi.FetchX509Bundles(ctx, address)
	if err != nil {
		log.Fatal(err)
	}
	for _, bundle := range bundles.Bundles() {
		fmt.Printf("bundle of %s: %d\n", bundle.TrustDomain(), len(bundle.X509Authorities()))
	}
	_, err = workloadapi.FetchJWTSVID(ctx, jwtsvid.Params{Audience: "anybody"}, address)
	fmt.Println("jwt:", status.Code(err))

	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(address))
	if err != nil {
		log.Fatal(err)
	}
	defer source.Close()
	call(source, at, server)
	first := serial(source)
	for serial(source) == first {
		if err := source.WaitUntilUpdated(ctx); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("renewed")
	call(source, at, server)
}

func serial(source *workloadapi.X509Source) string {
	own, err := source.GetX509SVID()
	if err != nil {
		log.Fatal(err)
	}
	return own.Certificates[0].SerialNumber.String()
}

func call(source *workloadapi.X509Source, at string, server spiffeid.ID) {
	config := tlsconfig.MTLSClientConfig(source, source, tlsconfig.AuthorizeID(server))
	connection, err := tls.Dial("tcp", at, config)
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	line, err := bufio.NewReader(connection).ReadString('\n')
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(line)
}
