//! The service by the server that partywall-build generates, with nothing around it.

use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use super::{ECHO_INITIAL, ECHO_TRAILING, Handle, Responses, TestService, TestServiceApi};
use crate::proto::native::test_service_server as stubs;
use crate::proto::{
    Empty, SimpleRequest, SimpleResponse, StreamingInputCallRequest, StreamingInputCallResponse,
    StreamingOutputCallRequest,
};

/// The service by itself, to be mounted as it is: its unary calls can go natively. A unary call has the
/// metadata echo of [`EchoHeaders`](super::EchoHeaders) as far as a handler of tonic's can give it: all in
/// the head of a good answer.
pub fn native(handle: Handle) -> stubs::TestServiceServer<TestService> {
    let mut server = stubs::TestServiceServer::new(TestService { handle });
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Zstd] {
        server = server.accept_compressed(encoding).send_compressed(encoding);
    }
    server
}

/// Copies what is to come back.
fn echo(from: &MetadataMap, to: &mut MetadataMap) {
    for value in from.get_all(ECHO_INITIAL) {
        to.append(ECHO_INITIAL, value.clone());
    }
    for value in from.get_all_bin(ECHO_TRAILING) {
        to.append_bin(ECHO_TRAILING, value.clone());
    }
}

/// Echoes metadata in the answer, good or not.
fn echoed<R>(asked: &MetadataMap, mut answer: Answer<R>) -> Answer<R> {
    match &mut answer {
        Ok(response) => echo(asked, response.metadata_mut()),
        Err(status) => echo(asked, status.metadata_mut()),
    }
    answer
}

type Answer<R> = Result<Response<R>, Status>;

/// The handlers are those of the service by tonic's stubs.
macro_rules! handlers {
    (
        unary { $($unary:ident($asked:ty) -> $answered:ty;)* }
        streams { $($stream:ident($requests:ty) -> $responses:ty;)* }
    ) => {
        #[tonic::async_trait]
        impl stubs::TestService for TestService {
            type StreamingOutputCallStream = Responses;
            type FullDuplexCallStream = Responses;
            type HalfDuplexCallStream = Responses;

            $(async fn $unary(&self, request: Request<$asked>) -> Answer<$answered> {
                self.handle.ways.count(request.metadata());
                let asked = request.metadata().clone();
                echoed(&asked, TestServiceApi::$unary(self, request).await)
            })*

            $(async fn $stream(&self, request: Request<$requests>) -> Answer<$responses> {
                TestServiceApi::$stream(self, request).await
            })*
        }
    };
}

handlers! {
    unary {
        empty_call(Empty) -> Empty;
        unary_call(SimpleRequest) -> SimpleResponse;
        cacheable_unary_call(SimpleRequest) -> SimpleResponse;
        unimplemented_call(Empty) -> Empty;
    }
    streams {
        streaming_output_call(StreamingOutputCallRequest) -> Responses;
        streaming_input_call(Streaming<StreamingInputCallRequest>) -> StreamingInputCallResponse;
        full_duplex_call(Streaming<StreamingOutputCallRequest>) -> Responses;
        half_duplex_call(Streaming<StreamingOutputCallRequest>) -> Responses;
    }
}
