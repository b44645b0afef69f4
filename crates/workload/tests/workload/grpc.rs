//! Stock clients and servers of gRPC, in Go and Python, with certificates of the Workload API: they call a
//! service of Partywall by mutual TLS, and are called by its channels.

use std::process::Command;
use std::sync::{Arc, Mutex};

use partywall::{Channel, Endpoint, Routes, Server, Target, spiffe_id_of};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::programs::{Running, fact, go, program_of, python, run};
use crate::rig::{Rig, within};

/// The message of both directions is google.protobuf.StringValue.
type Codec = ProstCodec<String, String>;

const SHOP: &str = "spiffe://partywall.local/service/shop";
const STOCK: &str = "spiffe://partywall.local/service/stock";
const DENIED: &str = "the policy does not let spiffe://partywall.local/service/stock call \
    /test.Who/Other; remedy: list `test.Who/Other`, or `*`, for one of its principals under \
    [service.billing.call]";

/// `test.Who`, which says by whom it is called, and keeps that.
#[derive(Clone, Default)]
struct Who(Arc<Mutex<Vec<String>>>);

impl tonic::server::NamedService for Who {
    const NAME: &'static str = "test.Who";
}

impl tonic::server::UnaryService<String> for Who {
    type Response = String;
    type Future = BoxFuture<Response<String>, Status>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let id = spiffe_id_of(request.extensions()).unwrap_or("nobody").to_owned();
        self.0.lock().unwrap().push(id.clone());
        Box::pin(async move { Ok(Response::new(format!("{id}: {}", request.into_inner()))) })
    }
}

impl Service<http::Request<Body>> for Who {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let who = self.clone();
        Box::pin(
            async move { Ok(tonic::server::Grpc::new(Codec::default()).unary(who, request).await) },
        )
    }
}

/// This process is `shop`, and a program with that fact is `stock`.
fn principals(stock: &str) -> String {
    let own = fact(&std::env::current_exe().unwrap());
    format!("[principal.shop]\n{own}[principal.stock]\n{stock}")
}

/// What a stock client says, told where the Workload API is, and the address and the name of a service of
/// which it may call one method; and by whom that was called.
async fn called_by(client: Command, is_client: &str) -> (Vec<String>, Vec<String>) {
    let rig = Rig::new(&format!(
        "{}[service.billing]\nregister = ['shop']\n[service.billing.call]\nstock = ['test.Who/Calls']\n",
        principals(is_client),
    ));
    let who = Who::default();
    let routes = Routes::default().add_service(who.clone());
    let router = Server::builder().coordinator(&rig.control).add_routes(routes);
    let bound = within(router.bind("billing,https://127.0.0.1:0")).await.unwrap();
    let https = bound.addresses().iter().find(|address| matches!(address, Target::Https(_)));
    let at = https.unwrap().to_string().replacen("https://", "", 1);
    let serving = tokio::spawn(bound.serve());
    let mut client = client;
    client.arg(&rig.socket).args([&at, "billing"]);
    let said = tokio::task::spawn_blocking(move || run(&mut client)).await.unwrap();
    serving.abort();
    let calls = who.0.lock().unwrap().clone();
    (said.lines().map(str::to_owned).collect(), calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_go_grpc_client_is_known_by_mutual_tls_and_held() {
    let (program, is_client) = go("grpc-client");
    let (said, calls) = called_by(Command::new(program), &is_client).await;
    assert_eq!(said.len(), 5, "{said:?}");
    assert_eq!(said[0], format!("{STOCK}: go"));
    assert_eq!(said[1], format!("PermissionDenied: {DENIED}"));
    let other = "certificate is valid for billing, localhost, not elsewhere";
    assert!(said[2].starts_with("Unavailable: ") && said[2].contains(other), "{said:?}");
    // Without a certificate, and with one that its own key has signed.
    assert_eq!(said[3..], ["Unavailable", "Unavailable"]);
    assert_eq!(calls, [STOCK]);
}

/// What both programs begin with: an SVID of the Workload API, as PEM, and methods over StringValue.
const PYTHON: &str = r#"
import sys, grpc
from cryptography.hazmat.primitives import serialization as forms
from google.protobuf.wrappers_pb2 import StringValue
from spiffe import WorkloadApiClient
client = WorkloadApiClient("unix:" + sys.argv[1])
context = client.fetch_x509_context(timeout=20)
svid = context.default_svid
bundle = context.x509_bundle_set.get_bundle_for_trust_domain(svid.spiffe_id.trust_domain)
pem = lambda certificates: b"".join(one.public_bytes(forms.Encoding.PEM) for one in certificates)
of_key = lambda key: key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
roots, chain, key = pem(bundle.x509_authorities), pem(svid.cert_chain), of_key(svid.private_key)
"#;

const CLIENT: &str = r#"
import datetime
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
at, name = sys.argv[2:]
def call(method, name, *certificate):
    credentials = grpc.ssl_channel_credentials(roots, *certificate)
    options = [("grpc.ssl_target_name_override", name)]
    with grpc.secure_channel(at, credentials, options=options) as channel:
        asks = channel.unary_unary(method, StringValue.SerializeToString, StringValue.FromString)
        try:
            return asks(StringValue(value="python"), timeout=20).value
        except grpc.RpcError as error:
            return error.code().name + ": " + error.details()
print(call("/test.Who/Calls", name, key, chain))
print(call("/test.Who/Other", name, key, chain))
print(call("/test.Who/Calls", "elsewhere", key, chain))
print(call("/test.Who/Calls", name).partition(":")[0])
forger, nobody = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
now, hour = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(hours=1)
forged = x509.CertificateBuilder(nobody, nobody, forger.public_key(), 1, now - hour, now + hour)
names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(str(svid.spiffe_id))])
forged = forged.add_extension(names, True).sign(forger, hashes.SHA256())
print(call("/test.Who/Calls", name, of_key(forger), pem([forged])).partition(":")[0])
"#;

const SERVER: &str = r#"
from concurrent.futures import ThreadPoolExecutor
class Answers(grpc.GenericRpcHandler):
    def service(self, details):
        def answer(asked, context):
            caller, = context.auth_context()["peer_spiffe_id"]
            said = f"{details.method} by {caller.decode()}: {asked.value}"
            print(said, flush=True)
            return StringValue(value=said)
        forms = StringValue.FromString, StringValue.SerializeToString
        return grpc.unary_unary_rpc_method_handler(answer, *forms)
server = grpc.server(ThreadPoolExecutor(2))
server.add_generic_rpc_handlers([Answers()])
credentials = grpc.ssl_server_credentials([(key, chain)], roots, require_client_auth=True)
print("listening at 127.0.0.1:" + str(server.add_secure_port("127.0.0.1:0", credentials)), flush=True)
server.start()
server.wait_for_termination()
"#;

/// A program in Python, and the fact of its interpreter.
fn python_program(text: &str) -> (Command, String) {
    let mut python3 = Command::new("python3");
    python3.args(["-c", &[PYTHON, text].concat()]).env("PYTHONPATH", python());
    (python3, fact(&program_of("python3")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grpcio_client_is_known_by_mutual_tls_and_held() {
    let (client, is_client) = python_program(CLIENT);
    let (said, calls) = called_by(client, &is_client).await;
    assert_eq!(said.len(), 5, "{said:?}");
    assert_eq!(said[0], format!("{STOCK}: python"));
    assert_eq!(said[1], format!("PERMISSION_DENIED: {DENIED}"));
    let other = "Hostname Verification Check failed";
    assert!(said[2].starts_with("UNAVAILABLE: ") && said[2].contains(other), "{said:?}");
    assert_eq!(said[3..], ["UNAVAILABLE", "UNAVAILABLE"]);
    assert_eq!(calls, [STOCK]);
}

async fn asks(channel: Channel, method: &'static str) -> Result<String, Status> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static(method);
    let reply = within(grpc.unary(Request::new("rust".to_owned()), path, Codec::default())).await;
    reply.map(Response::into_inner)
}

/// Calls a stock server, which is told where the Workload API is, as the name that it is certified for, as
/// another one and by its address.
async fn calls(mut server: Command, is_server: &str) {
    let policy = |elsewhere: &str| {
        let fallback = if elsewhere.is_empty() { "" } else { "fallback = true\n" };
        format!(
            "{}[service.ledger]\nregister = ['stock']\n{fallback}\
             [service.ledger.call]\nshop = {{ methods = ['test.Who/Calls'], seal = 'required' }}\n\
             [service.vault.call]\nshop = ['*']\n{elsewhere}",
            principals(is_server),
        )
    };
    let rig = Rig::new(&policy(""));
    server.arg(&rig.socket);
    let mut served = Running::start(&mut server);
    let listens = served.line();
    let at = listens.strip_prefix("listening at ").unwrap_or_else(|| panic!("{listens}"));
    rig.reload(&policy(&format!("[names]\nledger = 'https://{at}'\nvault = 'https://{at}'\n")));
    let connect = async |target: String| {
        let endpoint = Endpoint::from_shared(target).unwrap().coordinator(&rig.control);
        within(endpoint.connect()).await
    };

    let ledger = connect("partywall:///ledger".into()).await.unwrap();
    let said = format!("/test.Who/Calls by {SHOP}: rust");
    assert_eq!(asks(ledger.clone(), "/test.Who/Calls").await.unwrap(), said);
    assert_eq!(served.line(), said);
    let denied = asks(ledger, "/test.Who/Other").await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied, "{denied}");

    let refused = connect("partywall:///vault".into()).await.unwrap_err().to_string();
    let why = format!("the certificate of {STOCK} is not for `vault`, but for ledger, localhost");
    assert!(refused.contains(&why), "{refused}");

    let address = connect(format!("https://{at}")).await.unwrap();
    let said = format!("/test.Who/Other by {SHOP}: rust");
    assert_eq!(asks(address, "/test.Who/Other").await.unwrap(), said);
    // The first after that of the name: nothing that was refused has reached it.
    assert_eq!(served.line(), said);

    let stranger = Rig::new("");
    let endpoint = Endpoint::from_shared(format!("https://{at}")).unwrap();
    let refused = within(endpoint.coordinator(&stranger.control).connect()).await.unwrap_err();
    let why = "is not signed by a trusted authority";
    assert!(refused.to_string().contains(why), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_go_grpc_server_knows_its_caller_and_is_known() {
    let (program, is_server) = go("grpc-server");
    calls(Command::new(program), &is_server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grpcio_server_knows_its_caller_and_is_known() {
    let (server, is_server) = python_program(SERVER);
    calls(server, &is_server).await;
}
