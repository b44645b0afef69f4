//! `SpiffeWorkloadAPI`: who gets what, and when another one comes.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant, SystemTime};

use partywall_trust::{Certified, Chain, Roots, TrustDomain};
use partywall_workload::proto::spiffe_workload_api_client::SpiffeWorkloadApiClient;
use partywall_workload::proto::{
    JwtBundlesRequest, JwtsvidRequest, ValidateJwtsvidRequest, X509BundlesRequest, X509svid,
    X509svidRequest,
};
use tonic::{Code, Request, Streaming};

use crate::rig::{Rig, asks, principal, within};

const DOMAIN: &str = "spiffe://partywall.local";

/// The one SVID of the next answer.
async fn next(
    stream: &mut Streaming<partywall_workload::proto::X509svidResponse>,
) -> Result<X509svid, tonic::Status> {
    let mut answer = within(stream.message()).await?.expect("the stream goes on");
    assert!(answer.crl.is_empty() && answer.federated_bundles.is_empty());
    assert_eq!(answer.svids.len(), 1);
    Ok(answer.svids.remove(0))
}

/// That an SVID is believed by who has its bundle; its certificate.
fn believed(svid: &X509svid) -> Certified {
    let mut roots = Roots::default();
    roots.add(&TrustDomain::new(&DOMAIN["spiffe://".len()..]).unwrap(), &svid.bundle).unwrap();
    let chain = Chain::new(vec![svid.x509_svid.to_vec()]).unwrap();
    let certified = roots.verify(&chain, SystemTime::now()).unwrap();
    assert_eq!(certified.id.as_str(), svid.spiffe_id);
    // RFC 5958 and RFC 5915: the private key has its public one with it.
    let public = certified.key.to_der();
    let point = &public[public.len() - 65..];
    assert!(
        svid.x509_svid_key.windows(65).any(|part| part == point),
        "the key is the certificate's"
    );
    assert!(!format!("{svid:?}").contains("key"), "{svid:?}");
    certified
}

#[tokio::test]
async fn an_svid_is_of_the_principal_and_one_for_a_connection() {
    let rig = Rig::new(&format!(
        "{}[service.shop]\nregister = ['me']\n[service.shop.call]\n",
        principal("me")
    ));
    let mode = std::fs::metadata(&rig.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666, "as the control socket");
    let mut client = rig.client().await;
    let fetch = async |client: &mut SpiffeWorkloadApiClient<_>| {
        let answer = within(client.fetch_x509svid(asks(X509svidRequest {}))).await;
        let mut stream = answer.unwrap().into_inner();
        (next(&mut stream).await.unwrap(), stream)
    };
    let (svid, _goes_on) = fetch(&mut client).await;
    assert_eq!(svid.spiffe_id, "spiffe://partywall.local/service/me");
    let certified = believed(&svid);
    assert_eq!(certified.dns, ["shop", "localhost"]);
    let life = certified.not_after.duration_since(SystemTime::now()).unwrap();
    assert!(life > Duration::from_secs(3500) && life <= Duration::from_secs(3600), "{life:?}");
    let (same, _goes_on) = fetch(&mut client).await;
    assert_eq!(same, svid, "of the same connection");
    let (other, _goes_on) = fetch(&mut rig.client().await).await;
    assert_ne!(other.x509_svid_key, svid.x509_svid_key, "of another one");
    assert_eq!(believed(&other).id, certified.id);
    let bundles = within(client.fetch_x509_bundles(asks(X509BundlesRequest {}))).await;
    let bundles = within(bundles.unwrap().into_inner().message()).await.unwrap().unwrap();
    assert_eq!(bundles.bundles.into_iter().collect::<Vec<_>>(), [(DOMAIN.into(), svid.bundle)]);
}

#[tokio::test]
async fn a_call_without_the_security_header_is_refused() {
    let rig = Rig::new(&principal("me"));
    let mut client = rig.client().await;
    let with = |values: &[&'static str]| {
        let mut request = Request::new(());
        for value in values {
            request.metadata_mut().append("workload.spiffe.io", value.parse().unwrap());
        }
        request
    };
    for values in [&[][..], &["false"], &["True"], &["true", "true"]] {
        let refused = [
            within(client.fetch_x509svid(with(values).map(|()| X509svidRequest {}))).await.err(),
            within(client.fetch_x509_bundles(with(values).map(|()| X509BundlesRequest {})))
                .await
                .err(),
            within(client.fetch_jwtsvid(with(values).map(|()| JwtsvidRequest::default())))
                .await
                .err(),
            within(client.fetch_jwt_bundles(with(values).map(|()| JwtBundlesRequest {})))
                .await
                .err(),
        ];
        for refused in refused {
            let refused = refused.expect("it is refused");
            assert_eq!(refused.code(), Code::InvalidArgument, "{values:?}: {refused:?}");
            assert!(
                refused.message().contains("`workload.spiffe.io: true` is missing"),
                "{refused:?}"
            );
        }
    }
}

#[tokio::test]
async fn there_are_no_jwt_svids() {
    let rig = Rig::new(&principal("me"));
    let mut client = rig.client().await;
    let refused = [
        within(client.fetch_jwtsvid(asks(JwtsvidRequest::default()))).await.unwrap_err(),
        within(client.fetch_jwt_bundles(asks(JwtBundlesRequest {}))).await.unwrap_err(),
        within(client.validate_jwtsvid(asks(ValidateJwtsvidRequest::default()))).await.unwrap_err(),
    ];
    for refused in refused {
        assert_eq!(refused.code(), Code::Unimplemented);
        assert!(
            refused.message().starts_with("there are no JWT-SVIDs here; remedy:"),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn who_is_no_principal_is_denied_until_it_is_one() {
    let rig = Rig::new("[principal.other]\nuid = 4000000000\n");
    let mut client = rig.client().await;
    for _ in 0..2 {
        let denied = [
            within(client.fetch_x509svid(asks(X509svidRequest {}))).await.err(),
            within(client.fetch_x509_bundles(asks(X509BundlesRequest {}))).await.err(),
        ];
        for denied in denied {
            let denied = denied.expect("it is denied");
            assert_eq!(denied.code(), Code::PermissionDenied, "{denied:?}");
            assert!(denied.message().contains("no principal of the policy"), "{denied:?}");
        }
    }
    rig.reload(&principal("me"));
    let mut stream =
        within(client.fetch_x509svid(asks(X509svidRequest {}))).await.unwrap().into_inner();
    believed(&next(&mut stream).await.unwrap());
}

#[tokio::test]
async fn a_reload_changes_or_ends_what_a_stream_gets() {
    let rig = Rig::new(&principal("me"));
    let mut client = rig.client().await;
    let mut stream =
        within(client.fetch_x509svid(asks(X509svidRequest {}))).await.unwrap().into_inner();
    let mut bundles =
        within(client.fetch_x509_bundles(asks(X509BundlesRequest {}))).await.unwrap().into_inner();
    let first = next(&mut stream).await.unwrap();
    let roots = within(bundles.message()).await.unwrap().unwrap();
    // What changes nothing for this workload is no update: the next one is the one after it.
    rig.reload(&format!("{}[principal.other]\nuid = 4000000000\n", principal("me")));
    rig.reload(&principal("another"));
    let second = next(&mut stream).await.unwrap();
    assert_eq!(second.spiffe_id, "spiffe://partywall.local/service/another");
    believed(&second);
    assert_ne!(second.x509_svid_key, first.x509_svid_key);
    // Another authority: of another trust domain.
    rig.reload(&format!("{}[authority]\ndomain = 'shop.example'\n", principal("another")));
    let third = next(&mut stream).await.unwrap();
    assert_eq!(third.spiffe_id, "spiffe://shop.example/service/another");
    let others = within(bundles.message()).await.unwrap().unwrap();
    assert_eq!(others.bundles.keys().collect::<Vec<_>>(), ["spiffe://shop.example"]);
    assert_ne!(others, roots);
    rig.reload("");
    let denied = next(&mut stream).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied, "{denied:?}");
    assert_eq!(within(bundles.message()).await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn another_svid_comes_well_before_the_end_of_the_one() {
    let rig = Rig::new(&format!("{}[authority]\nlife_seconds = 10\n", principal("me")));
    let mut client = rig.client().await;
    let mut stream =
        within(client.fetch_x509svid(asks(X509svidRequest {}))).await.unwrap().into_inner();
    let (first, came) = (next(&mut stream).await.unwrap(), Instant::now());
    let end = believed(&first).not_after;
    let second = next(&mut stream).await.unwrap();
    assert!(came.elapsed() > Duration::from_secs(5), "{:?}", came.elapsed());
    assert!(SystemTime::now() < end, "the first one holds still");
    let certified = believed(&second);
    assert!(certified.not_after > end && certified.id.as_str() == first.spiffe_id);
    assert_ne!(second.x509_svid_key, first.x509_svid_key);
}
