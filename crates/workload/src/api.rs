//! `SpiffeWorkloadAPI`, by the SPIFFE Workload API, version 1.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status};

use crate::caller::{BYTES, Caller};
use crate::proto::spiffe_workload_api_server::{SpiffeWorkloadApi, SpiffeWorkloadApiServer};
use crate::proto::{
    JwtBundlesRequest, JwtBundlesResponse, JwtsvidRequest, JwtsvidResponse, ValidateJwtsvidRequest,
    ValidateJwtsvidResponse, X509BundlesRequest, X509BundlesResponse, X509svid, X509svidRequest,
    X509svidResponse,
};
use crate::svid::Svid;

/// What each request has to carry (section 3, "Static Security Header"): a request that was smuggled through
/// another server has none.
const HEADER: &str = "workload.spiffe.io";

/// What looks at a request before its method does.
type Interceptor = fn(Request<()>) -> Result<Request<()>, Status>;

/// The service of one connection.
pub(crate) fn service(
    caller: Caller,
) -> InterceptedService<SpiffeWorkloadApiServer<Api>, Interceptor> {
    let server = SpiffeWorkloadApiServer::new(Api { caller }).max_decoding_message_size(BYTES);
    InterceptedService::new(server, has_header)
}

fn has_header(request: Request<()>) -> Result<Request<()>, Status> {
    let mut values = request.metadata().get_all(HEADER).iter();
    match (values.next(), values.next()) {
        (Some(value), None) if value == "true" => Ok(request),
        _ => Err(Status::invalid_argument(format!(
            "the metadata `{HEADER}: true` is missing; remedy: a SPIFFE library, or send it"
        ))),
    }
}

/// The calls of one connection.
pub(crate) struct Api {
    caller: Caller,
}

type Stream<T> = ReceiverStream<Result<T, Status>>;

impl Api {
    /// What is made of the latest certificate, now and each time that its version is another one.
    async fn updates<T: Send + 'static>(
        &self,
        version: fn(&Svid) -> u64,
        make: fn(&Svid) -> T,
    ) -> Result<Response<Stream<T>>, Status> {
        let place = self.caller.place()?;
        self.caller.certificate.now().await?;
        let mut watch = self.caller.certificate.watch();
        let (tx, rx) = mpsc::channel(1);
        tokio::spawn(async move {
            let _until_the_end = place;
            let mut told = None;
            // A client that does not read is told the latest when it does.
            while let Ok(room) = tx.reserve().await {
                let shown = watch.borrow_and_update().clone();
                match shown {
                    Some(Ok(svid)) if told != Some(version(&svid)) => {
                        told = Some(version(&svid));
                        room.send(Ok(make(&svid)));
                    }
                    Some(Err(status)) => return room.send(Err(status)),
                    _ => drop(room),
                }
                tokio::select! {
                    changed = watch.changed() => if changed.is_err() { return },
                    () = tx.closed() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(rx)))
    }
}

fn with_key(svid: &Svid) -> X509svidResponse {
    let own = X509svid {
        spiffe_id: svid.id.clone(),
        x509_svid: svid.chain_der.clone(),
        x509_svid_key: svid.key_der.clone(),
        bundle: svid.own_bundle().map(|own| own.der.clone().into()).unwrap_or_default(),
        hint: String::new(),
    };
    let others = svid.bundles.iter().filter(|(domain, _)| **domain != svid.domain);
    let federated_bundles =
        others.map(|(domain, bundle)| (domain.clone(), bundle.der.clone().into())).collect();
    X509svidResponse { svids: vec![own], crl: Vec::new(), federated_bundles }
}

fn bundles(svid: &Svid) -> X509BundlesResponse {
    let bundles = svid.bundles.iter();
    let bundles =
        bundles.map(|(domain, bundle)| (domain.clone(), bundle.der.clone().into())).collect();
    X509BundlesResponse { crl: Vec::new(), bundles }
}

fn no_jwt() -> Status {
    Status::unimplemented("there are no JWT-SVIDs here; remedy: X.509-SVIDs (FetchX509SVID)")
}

#[tonic::async_trait]
impl SpiffeWorkloadApi for Api {
    type FetchX509SVIDStream = Stream<X509svidResponse>;
    type FetchX509BundlesStream = Stream<X509BundlesResponse>;
    type FetchJWTBundlesStream = Stream<JwtBundlesResponse>;

    async fn fetch_x509svid(
        &self,
        _: Request<X509svidRequest>,
    ) -> Result<Response<Self::FetchX509SVIDStream>, Status> {
        self.updates(|svid| svid.version, with_key).await
    }

    async fn fetch_x509_bundles(
        &self,
        _: Request<X509BundlesRequest>,
    ) -> Result<Response<Self::FetchX509BundlesStream>, Status> {
        self.updates(|svid| svid.bundles_version, bundles).await
    }

    async fn fetch_jwtsvid(
        &self,
        _: Request<JwtsvidRequest>,
    ) -> Result<Response<JwtsvidResponse>, Status> {
        Err(no_jwt())
    }

    async fn fetch_jwt_bundles(
        &self,
        _: Request<JwtBundlesRequest>,
    ) -> Result<Response<Self::FetchJWTBundlesStream>, Status> {
        Err(no_jwt())
    }

    async fn validate_jwtsvid(
        &self,
        _: Request<ValidateJwtsvidRequest>,
    ) -> Result<Response<ValidateJwtsvidResponse>, Status> {
        Err(no_jwt())
    }
}
