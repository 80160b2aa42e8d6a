//! Voters of one job on this machine, and the network between them.

use crate::consensus::embedded::{
    Embedded, EmbeddedClient, EmbeddedConfig, EmbeddedSettings, TcpConnect, VoterAddress,
};
use crate::consensus::{Candidate, Consensus, Epoch};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use taskd_runtime::job::{Name, NodeId};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::codegen::{BoxFuture, Service, http::Uri};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};

/// Bound of every wait: far more than any takes on a machine that is not overloaded.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// The side of the network on which an address is; messages cross no sides.
#[derive(Clone, Debug, Default)]
pub(super) struct Sides(Arc<Mutex<BTreeMap<String, u8>>>);

impl Sides {
    fn connected(&self, from: &str, to: &str) -> bool {
        let sides = self.0.lock().expect("lock");
        sides.get(from).copied().unwrap_or(0) == sides.get(to).copied().unwrap_or(0)
    }

    fn set(&self, address: &str, side: u8) {
        self.0.lock().expect("lock").insert(address.to_owned(), side);
    }
}

/// One end of the network.
#[derive(Clone, Debug)]
struct Dial {
    sides: Sides,
    from: String,
    to: String,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Link>;
    type Error = io::Error;
    type Future = BoxFuture<TokioIo<Link>, io::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let dial = self.clone();
        Box::pin(async move {
            if !dial.sides.connected(&dial.from, &dial.to) {
                return Err(io::ErrorKind::NetworkUnreachable.into());
            }
            let stream = TcpStream::connect(&dial.to).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(Link { stream, dial }))
        })
    }
}

/// A connection that fails when the network is cut.
#[derive(Debug)]
struct Link {
    stream: TcpStream,
    dial: Dial,
}

impl Link {
    fn check(&self) -> io::Result<Pin<&TcpStream>> {
        let connected = self.dial.sides.connected(&self.dial.from, &self.dial.to);
        if connected { Ok(Pin::new(&self.stream)) } else { Err(io::ErrorKind::ConnectionReset.into()) }
    }
}

impl AsyncRead for Link {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Link {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// One voter's process.
pub(super) struct Process {
    pub(super) engine: Embedded,
    runtime: Option<Runtime>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.runtime.take().expect("not taken before").shutdown_background();
    }
}

/// The voters of one job.
pub(super) struct World {
    dir: tempfile::TempDir,
    pub(super) places: Vec<VoterAddress>,
    listed: usize,
    sides: Sides,
    pub(super) settings: EmbeddedSettings,
    pub(super) processes: BTreeMap<usize, Process>,
    listeners: BTreeMap<usize, std::net::TcpListener>,
}

pub(super) fn host(index: usize) -> NodeId {
    NodeId(Name::from(format!("host-{index}")))
}

pub(super) fn candidate(index: usize) -> Candidate {
    Candidate::new(host(index), "1", format!("host-{index}:7000"))
}

impl World {
    /// Reserves addresses for `listed` voters and `spare` further ones, and starts none.
    pub(super) fn new(listed: usize, spare: usize) -> World {
        let ms = Duration::from_millis;
        let listeners: BTreeMap<usize, std::net::TcpListener> =
            (0..listed + spare).map(|i| (i, std::net::TcpListener::bind("127.0.0.1:0").expect("bind"))).collect();
        let places = listeners
            .iter()
            .map(|(i, listener)| VoterAddress::new(host(*i), listener.local_addr().expect("address").to_string()));
        World {
            dir: memory(),
            places: places.collect(),
            listed,
            sides: Sides::default(),
            settings: EmbeddedSettings::new(ms(60), ms(240), ms(480)).expect("settings"),
            processes: BTreeMap::new(),
            listeners,
        }
    }

    /// Starts all listed voters of a new world.
    pub(super) async fn started(listed: usize, spare: usize) -> World {
        World::new(listed, spare).start_all().await
    }

    pub(super) async fn start_all(self) -> World {
        let listed = self.listed;
        let mut world = self;
        for index in 0..listed {
            world.start(index, "boot-1").await;
        }
        world
    }

    pub(super) fn store(&self, index: usize) -> std::path::PathBuf {
        self.dir.path().join(format!("voter-{index}"))
    }

    pub(super) fn connect(
        &self,
        from: usize,
    ) -> impl Fn(&str) -> Result<Channel, crate::consensus::ConsensusError> + use<> {
        let (sides, from) = (self.sides.clone(), self.places[from].address.clone());
        move |to: &str| {
            let dial = Dial { sides: sides.clone(), from: from.clone(), to: to.to_owned() };
            Ok(TcpConnect::default().endpoint(to)?.connect_with_connector_lazy(dial))
        }
    }

    pub(super) fn config(&self, index: usize, boot: &str) -> EmbeddedConfig {
        let listed = self.places[..self.listed].iter().cloned();
        EmbeddedConfig::new("job", self.places[index].clone(), listed, self.store(index))
            .with_settings(self.settings)
            .with_boot(boot)
            .with_connect(self.connect(index))
    }

    /// Starts a voter, in a runtime of its own.
    pub(super) async fn start(&mut self, index: usize, boot: &str) -> Embedded {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
        let (config, address) = (self.config(index, boot), self.places[index].address.clone());
        let listener = self.listeners.remove(&index);
        let served = runtime.spawn(async move {
            let listener = match listener {
                Some(listener) => {
                    listener.set_nonblocking(true).expect("nonblocking");
                    TcpListener::from_std(listener).expect("listener")
                }
                None => TcpListener::bind(&address).await.expect("the address of the earlier process"),
            };
            let engine = Embedded::start(config).await.expect("started");
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            tokio::spawn(Server::builder().add_service(engine.service()).serve_with_incoming(incoming));
            engine
        });
        let engine = served.await.expect("started");
        self.processes.insert(index, Process { engine: engine.clone(), runtime: Some(runtime) });
        engine
    }

    /// Ends a voter as SIGKILL does: its tasks and connections are gone, and no message is sent.
    pub(super) async fn kill(&mut self, index: usize) {
        let process = self.processes.remove(&index).expect("running");
        let engine = process.engine.clone();
        drop(process);
        engine.shutdown().await;
    }

    pub(super) fn engine(&self, index: usize) -> Embedded {
        self.processes[&index].engine.clone()
    }

    /// Puts a voter on a side of the network.
    pub(super) fn side(&self, index: usize, side: u8) {
        self.sides.set(&self.places[index].address, side);
    }

    /// Campaigns on the voters of `indexes`, and returns the first that is elected and its epoch.
    pub(super) async fn elect(&self, indexes: &[usize]) -> (usize, Epoch) {
        let campaigns = indexes.iter().map(|index| {
            let engine = self.engine(*index);
            async move { (*index, engine.campaign(&candidate(*index)).await) }
        });
        let mut campaigns: FuturesUnordered<_> = campaigns.collect();
        let first = tokio::time::timeout(LONG, campaigns.next()).await.expect("one is elected in time");
        let (index, epoch) = first.expect("a campaign");
        (index, epoch.expect("elected"))
    }

    /// Campaigns on a voter in the background.
    pub(super) fn campaign(&self, index: usize) -> JoinHandle<Epoch> {
        let engine = self.engine(index);
        tokio::spawn(async move { engine.campaign(&candidate(index)).await.expect("elected") })
    }

    pub(super) fn client(&self, job: &'static str) -> EmbeddedClient {
        let addresses: Vec<String> = self.places[..self.listed].iter().map(|place| place.address.clone()).collect();
        EmbeddedClient::with_connect(job, addresses, self.settings, TcpConnect::default())
    }
}

/// Returns a directory in a file system in memory, if there is one: the disk of a busy machine would delay elections.
pub(super) fn memory() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    dir.expect("directory")
}

/// Waits until a condition holds.
pub(super) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(LONG, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

/// Writes a value under an epoch, in place of whatever is there.
pub(super) async fn write(engine: &Embedded, epoch: Epoch, value: &str) {
    let record = engine.read().await.expect("read");
    engine.compare_and_set(epoch, record.version, value.to_owned().into()).await.expect("written");
}

pub(super) async fn value(engine: &impl Consensus) -> String {
    String::from_utf8_lossy(&engine.read().await.expect("read").value).into_owned()
}
