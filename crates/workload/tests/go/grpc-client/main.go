// A client of grpc-go with crypto/tls, whose certificate, key and roots are those of the Workload API. It calls
// two methods, and tries what a server must refuse.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"math/big"
	"net/url"
	"os"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	socket, at, name := os.Args[1], os.Args[2], os.Args[3]
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	fetched, err := workloadapi.FetchX509Context(ctx, workloadapi.WithAddr("unix://"+socket))
	if err != nil {
		log.Fatal(err)
	}
	own := fetched.DefaultSVID()
	bundle, err := fetched.Bundles.GetX509BundleForTrustDomain(own.ID.TrustDomain())
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	for _, root := range bundle.X509Authorities() {
		roots.AddCert(root)
	}
	certificate := tls.Certificate{PrivateKey: own.PrivateKey}
	for _, one := range own.Certificates {
		certificate.Certificate = append(certificate.Certificate, one.Raw)
	}

	config := &tls.Config{RootCAs: roots, ServerName: name, Certificates: []tls.Certificate{certificate}}
	call(ctx, at, "/test.Who/Calls", config)
	call(ctx, at, "/test.Who/Other", config)

	other := config.Clone()
	other.ServerName = "elsewhere"
	call(ctx, at, "/test.Who/Calls", other)

	for _, certificates := range [][]tls.Certificate{nil, {forged(own.ID.URL())}} {
		other := config.Clone()
		other.Certificates = certificates
		connection := connect(at, other)
		err := connection.Invoke(ctx, "/test.Who/Calls", wrapperspb.String(""), &wrapperspb.StringValue{})
		fmt.Println(status.Code(err))
		connection.Close()
	}
}

func connect(at string, config *tls.Config) *grpc.ClientConn {
	connection, err := grpc.NewClient(at, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		log.Fatal(err)
	}
	return connection
}

// Prints the answer, or the status.
func call(ctx context.Context, at string, method string, config *tls.Config) {
	connection := connect(at, config)
	defer connection.Close()
	reply := &wrapperspb.StringValue{}
	if err := connection.Invoke(ctx, method, wrapperspb.String("go"), reply); err != nil {
		fmt.Printf("%s: %s\n", status.Code(err), status.Convert(err).Message())
		return
	}
	fmt.Println(reply.Value)
}

// A certificate for this ID that nobody but its own key has signed.
func forged(id *url.URL) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:         []*url.URL{id},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		log.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
