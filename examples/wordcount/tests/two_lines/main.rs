//! The gRPC form and the Partywall form of the example differ in two lines, one in each program.

const SERVERS: [&str; 2] =
    [include_str!("../../src/bin/grpc-server.rs"), include_str!("../../src/bin/server.rs")];
const CLIENTS: [&str; 2] =
    [include_str!("../../src/bin/grpc-client.rs"), include_str!("../../src/bin/client.rs")];

/// The lines that differ, of two texts with equally many lines.
fn differing([a, b]: [&str; 2]) -> Vec<(&str, &str)> {
    let (a, b): (Vec<_>, Vec<_>) = (a.lines().collect(), b.lines().collect());
    assert_eq!(a.len(), b.len(), "the two forms have different numbers of lines");
    a.into_iter().zip(b).filter(|(a, b)| a != b).collect()
}

#[test]
fn the_servers_differ_in_the_line_that_serves() {
    let [(grpc, partywall)] = differing(SERVERS)[..] else { panic!("{:#?}", differing(SERVERS)) };
    assert!(grpc.trim_start().starts_with("tonic::transport::Server::builder()"), "{grpc}");
    assert!(partywall.trim_start().starts_with("partywall::Server::builder()"), "{partywall}");
}

#[test]
fn the_clients_differ_in_the_line_that_connects() {
    let [(grpc, partywall)] = differing(CLIENTS)[..] else { panic!("{:#?}", differing(CLIENTS)) };
    assert!(grpc.contains("= tonic::transport::Endpoint::from_shared("), "{grpc}");
    assert!(partywall.contains("= partywall::Channel::connect("), "{partywall}");
}
