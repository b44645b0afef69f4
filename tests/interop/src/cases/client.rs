//! The service's client, by the stubs of either generator.

use tonic::codec::CompressionEncoding;
use tonic::{IntoRequest, IntoStreamingRequest, Response, Status, Streaming};

use super::Transport;
use crate::proto::{
    Empty, SimpleRequest, SimpleResponse, StreamingInputCallRequest, StreamingInputCallResponse,
    StreamingOutputCallRequest, StreamingOutputCallResponse, native, test_service_client,
};
use crate::ways::Ways;

/// Whose stubs the cases call by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stubs {
    /// Those of tonic-prost-build.
    #[default]
    Tonics,
    /// Those of partywall-build.
    Native,
}

#[derive(Clone, Debug)]
enum Either<T> {
    Tonics(test_service_client::TestServiceClient<T>),
    Native(native::test_service_client::TestServiceClient<T>),
}

/// A client that counts which way its unary calls go, of those that are answered with a message.
#[derive(Clone, Debug)]
pub struct Client<T> {
    either: Either<T>,
    ways: Ways,
}

macro_rules! settings {
    ($($name:ident($argument:ty);)*) => {$(
        #[doc = concat!("As `", stringify!($name), "` of the stubs.")]
        #[must_use]
        pub fn $name(self, value: $argument) -> Self {
            let either = match self.either {
                Either::Tonics(client) => Either::Tonics(client.$name(value)),
                Either::Native(client) => Either::Native(client.$name(value)),
            };
            Self { either, ..self }
        }
    )*};
}

macro_rules! calls {
    ($($is_unary:literal $name:ident($request:ty) -> $response:ty;)*) => {$(
        #[doc = concat!("As `", stringify!($name), "` of the stubs.")]
        ///
        /// # Errors
        /// The status of the call.
        pub async fn $name(
            &mut self,
            request: $request,
        ) -> Result<Response<$response>, Status> {
            let answer = match &mut self.either {
                Either::Tonics(client) => client.$name(request).await,
                Either::Native(client) => client.$name(request).await,
            };
            if let (true, Ok(response)) = ($is_unary, &answer) {
                self.ways.count(response.metadata());
            }
            answer
        }
    )*};
}

impl<T: Transport> Client<T> {
    /// A client that counts here.
    pub fn new(stubs: Stubs, transport: T, ways: Ways) -> Self {
        let either = match stubs {
            Stubs::Tonics => Either::Tonics(test_service_client::TestServiceClient::new(transport)),
            Stubs::Native => {
                Either::Native(native::test_service_client::TestServiceClient::new(transport))
            }
        };
        Self { either, ways }
    }

    settings! {
        send_compressed(CompressionEncoding);
        accept_compressed(CompressionEncoding);
        max_decoding_message_size(usize);
        max_encoding_message_size(usize);
    }

    calls! {
        true empty_call(impl IntoRequest<Empty>) -> Empty;
        true unary_call(impl IntoRequest<SimpleRequest>) -> SimpleResponse;
        true cacheable_unary_call(impl IntoRequest<SimpleRequest>) -> SimpleResponse;
        true unimplemented_call(impl IntoRequest<Empty>) -> Empty;
        false streaming_input_call(
            impl IntoStreamingRequest<Message = StreamingInputCallRequest>
        ) -> StreamingInputCallResponse;
        false streaming_output_call(
            impl IntoRequest<StreamingOutputCallRequest>
        ) -> Streaming<StreamingOutputCallResponse>;
        false full_duplex_call(
            impl IntoStreamingRequest<Message = StreamingOutputCallRequest>
        ) -> Streaming<StreamingOutputCallResponse>;
        false half_duplex_call(
            impl IntoStreamingRequest<Message = StreamingOutputCallRequest>
        ) -> Streaming<StreamingOutputCallResponse>;
    }
}
