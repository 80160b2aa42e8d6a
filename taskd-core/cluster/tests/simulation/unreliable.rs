//! A server that receives requests late and twice. Its sessions repeat and lose messages.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http_body::Frame;
use http_body_util::{BodyExt, Full};
use tonic::body::Body;
use tonic::codegen::{Bytes, Service, http};
use tonic::server::NamedService;

use crate::cluster::Cluster;

/// A service that receives its messages as the simulated network delivers them.
#[derive(Clone)]
pub(crate) struct Unreliable<S> {
    pub(crate) inner: S,
    pub(crate) cluster: Arc<Cluster>,
}

impl<S: NamedService> NamedService for Unreliable<S> {
    const NAME: &'static str = S::NAME;
}

type Request = http::Request<Body>;
type Response = http::Response<Body>;

impl<S> Service<Request> for Unreliable<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let this = Unreliable { inner: self.inner.clone(), cluster: Arc::clone(&self.cluster) };
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        Box::pin(async move {
            match &*method {
                "Session" => this.session(request).await,
                "Append" | "Vote" | "Install" => this.engine(request).await,
                _ => this.forward(request).await,
            }
        })
    }
}

impl<S> Unreliable<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    async fn forward(mut self, request: Request) -> Result<Response, Infallible> {
        std::future::poll_fn(|cx| self.inner.poll_ready(cx)).await?;
        self.inner.call(request).await
    }

    /// A message of the Raft engine, which may come late, and again later.
    async fn engine(self, request: Request) -> Result<Response, Infallible> {
        let (parts, body) = request.into_parts();
        let Ok(body) = body.collect().await else { return Ok(http::Response::new(Body::empty())) };
        let whole = body.to_bytes();
        let copy = |parts| Request::from_parts(parts, Body::new(Full::new(whole.clone())));
        if let Some(after) = self.cluster.repeats() {
            let (again, request) = (self.clone(), copy(parts.clone()));
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                drop(again.forward(request).await);
            });
        }
        if let Some(late) = self.cluster.delays() {
            tokio::time::sleep(late).await;
        }
        self.forward(copy(parts)).await
    }

    async fn session(self, request: Request) -> Result<Response, Infallible> {
        let cluster = Arc::clone(&self.cluster);
        let (parts, body) = self.forward(request).await?.into_parts();
        let body = Body::new(Messages { body, again: None, first: true, cluster });
        Ok(http::Response::from_parts(parts, body))
    }
}

/// The messages of a session, of which some come twice and some not at all.
struct Messages {
    body: Body,
    again: Option<Bytes>,
    /// The first message opens the session.
    first: bool,
    cluster: Arc<Cluster>,
}

impl http_body::Body for Messages {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        loop {
            if let Some(again) = self.again.take() {
                return Poll::Ready(Some(Ok(Frame::data(again))));
            }
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
            let opens = std::mem::take(&mut self.first);
            let Some(data) = frame.data_ref().filter(|_| !opens) else { return Poll::Ready(Some(Ok(frame))) };
            if self.cluster.loses() {
                continue;
            }
            self.again = self.cluster.repeats().map(|_| data.clone());
            return Poll::Ready(Some(Ok(frame)));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.again.is_none() && self.body.is_end_stream()
    }
}
