// A server of grpc-go with crypto/tls, whose certificate, key and roots are those of the Workload API. It wants
// a certificate of its callers, answers each call with the SPIFFE ID in that, and prints what it answers.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	fetched, err := workloadapi.FetchX509Context(ctx, workloadapi.WithAddr("unix://"+os.Args[1]))
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

	config := &tls.Config{
		Certificates: []tls.Certificate{certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    roots,
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.UnknownServiceHandler(answer))
	fmt.Println("listening at", listener.Addr())
	log.Fatal(server.Serve(listener))
}

func answer(_ any, stream grpc.ServerStream) error {
	asked := &wrapperspb.StringValue{}
	if err := stream.RecvMsg(asked); err != nil {
		return err
	}
	caller, _ := peer.FromContext(stream.Context())
	secure, ok := caller.AuthInfo.(credentials.TLSInfo)
	if !ok || secure.SPIFFEID == nil {
		return errors.New("no SPIFFE ID")
	}
	method, _ := grpc.MethodFromServerStream(stream)
	said := fmt.Sprintf("%s by %s: %s", method, secure.SPIFFEID, asked.Value)
	fmt.Println(said)
	return stream.SendMsg(wrapperspb.String(said))
}
