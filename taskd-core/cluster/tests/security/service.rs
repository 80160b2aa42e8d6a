//! A gRPC service with one method, mounted as other services are.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use taskd_cluster::security::{Incoming, Peer, SecurityContext};
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{Service, http};
use tonic::server::{NamedService, UnaryService};
use tonic::service::InterceptorLayer;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Text {
    #[prost(string, tag = "1")]
    pub(crate) text: String,
}

/// Answers a host's name if the peer may speak for it.
#[derive(Clone)]
struct Greeter;

impl UnaryService<Text> for Greeter {
    type Response = Text;
    type Future = std::future::Ready<Result<Response<Text>, Status>>;

    fn call(&mut self, request: Request<Text>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().expect("each request has its peer");
        let answer = match peer.identity().may_speak_for(&request.get_ref().text) {
            Ok(()) => Ok(Response::new(Text { text: format!("verified: {}", peer.identity().is_verified()) })),
            Err(error) => Err(error.into()),
        };
        std::future::ready(answer)
    }
}

impl NamedService for Greeter {
    const NAME: &'static str = "test.Greeter";
}

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            Ok(tonic::server::Grpc::new(ProstCodec::<Text, Text>::default()).unary(Greeter, request).await)
        })
    }
}

/// Serves on loopback until the test ends, and returns the port.
pub(crate) fn serve(context: &SecurityContext) -> u16 {
    let incoming = context.listen(([127, 0, 0, 1], 0).into()).expect("a port");
    serve_incoming(context, incoming)
}

pub(crate) fn serve_incoming(context: &SecurityContext, incoming: Incoming) -> u16 {
    let port = incoming.local_addr().port();
    let layer = InterceptorLayer::new(context.require_token());
    tokio::spawn(Server::builder().layer(layer).add_service(Greeter).serve_with_incoming(incoming));
    port
}

/// Connects and calls once, in the name of `host`.
pub(crate) async fn greet(client: &SecurityContext, port: u16, host: &str) -> Result<String, Status> {
    Greeting::new(client, port).call(host).await
}

/// A client that keeps its connection.
pub(crate) struct Greeting(
    tonic::client::Grpc<InterceptedService<tonic::transport::Channel, taskd_cluster::security::PresentToken>>,
);

impl Greeting {
    pub(crate) fn new(client: &SecurityContext, port: u16) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).expect("a URI");
        let channel = endpoint.timeout(Duration::from_secs(60)).connect_with_connector_lazy(client.connector());
        Self(tonic::client::Grpc::new(InterceptedService::new(channel, client.present_token())))
    }

    pub(crate) async fn call(&mut self, host: &str) -> Result<String, Status> {
        self.0.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        let request = Request::new(Text { text: host.to_owned() });
        let path = PathAndQuery::from_static("/test.Greeter/Greet");
        let response = self.0.unary(request, path, ProstCodec::<Text, Text>::default()).await?;
        Ok(response.into_inner().text)
    }
}
