//! Plugins around other plugins: one macro that passes on every method of a plugin's trait.
//!
//! It changes nothing on the way.

/// Passes the methods of a plugin's trait on to the plugin inside, so that a plugin around another one writes only what it
/// changes.
///
/// It stands in the implementation of [`Launcher`](crate::launch::Launcher), [`TraceSource`](crate::trace::TraceSource),
/// [`FaultDetector`](crate::detect::FaultDetector) or [`RecoveryStrategy`](crate::recover::RecoveryStrategy). It names the
/// trait, the plugin inside, and after `except` the methods that are written out beside it. All others are passed on, also
/// those that a later version of taskd adds: many of them have a default that means "this plugin cannot", and a plugin that
/// leaves them at that takes the ability away from the one inside.
///
/// ```
/// use std::time::Duration;
/// use taskd_core::job::ProcId;
/// use taskd_core::launch::{LaunchError, Launcher};
///
/// /// Gives every process at least a minute to end.
/// struct Patient<L> { inner: L }
///
/// #[async_trait::async_trait]
/// impl<L: Launcher> Launcher for Patient<L> {
///     taskd_core::delegate!(Launcher to |this| this.inner, except stop);
///
///     async fn stop(&self, procs: &[ProcId], grace: Duration) -> Result<(), LaunchError> {
///         self.inner.stop(procs, grace.max(Duration::from_secs(60))).await
///     }
/// }
/// ```
///
/// A name after `except` that is no method of the trait is an error, and so is a method that is both passed on and written
/// out.
#[macro_export]
macro_rules! delegate {
    ($plugin:ident to |$this:ident| $inner:expr) => {
        $crate::delegate!($plugin to |$this| $inner, except);
    };
    (Launcher to |$this:ident| $inner:expr, except $($own:ident),*) => {
        $($crate::__delegate_knows!(Launcher $own);)*
        $crate::__delegate_unless!(info [$($own)*] {
            fn info(&self) -> $crate::launch::LauncherInfo { let $this = self; $inner.info() }
        });
        $crate::__delegate_unless!(start [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, ['l1], batch: &'l1 $crate::launch::StartBatch,
                => Result<(), $crate::launch::LaunchError>, start, $inner.start(batch)
            );
        });
        $crate::__delegate_unless!(stop [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, ['l1], procs: &'l1 [$crate::job::ProcId], grace: ::std::time::Duration,
                => Result<(), $crate::launch::LaunchError>, stop, $inner.stop(procs, grace)
            );
        });
        $crate::__delegate_unless!(list [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, [],
                => Result<$crate::launch::Listing, $crate::launch::LaunchError>, list, $inner.list()
            );
        });
        $crate::__delegate_unless!(watch [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, [], from: $crate::launch::Revision,
                => Result<(Vec<$crate::launch::Change>, $crate::launch::Revision), $crate::launch::LaunchError>,
                watch, $inner.watch(from)
            );
        });
        $crate::__delegate_unless!(acknowledge [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, ['l1], exits: &'l1 [$crate::job::ProcId],
                => Result<(), $crate::launch::LaunchError>, acknowledge, $inner.acknowledge(exits)
            );
        });
        $crate::__delegate_unless!(direct [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, ['l1], id: $crate::job::CommandId, batch: &'l1 $crate::launch::DirectBatch,
                => Result<(), $crate::launch::LaunchError>, direct, $inner.direct(id, batch)
            );
        });
        $crate::__delegate_unless!(prepare [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, ['l1], batch: &'l1 $crate::launch::StartBatch, in_loop: bool,
                => Result<(), $crate::launch::LaunchError>, prepare, $inner.prepare(batch, in_loop)
            );
        });
        $crate::__delegate_unless!(detach [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, [], keep: ::std::time::Duration,
                => Result<(), $crate::launch::LaunchError>, detach, $inner.detach(keep)
            );
        });
        $crate::__delegate_unless!(wind_down [$($own)*] {
            fn wind_down(&self, grace: ::std::time::Duration) { let $this = self; $inner.wind_down(grace) }
        });
    };
    (TraceSource to |$this:ident| $inner:expr, except $($own:ident),*) => {
        $($crate::__delegate_knows!(TraceSource $own);)*
        $crate::__delegate_unless!(info [$($own)*] {
            fn info(&self) -> $crate::trace::SourceInfo { let $this = self; $inner.info() }
        });
        $crate::__delegate_unless!(next [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 mut Self, $this, [],
                => Option<Result<$crate::trace::TraceBatch, $crate::trace::SourceError>>, next, $inner.next()
            );
        });
        $crate::__delegate_unless!(collect [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 mut Self, $this, ['l1 'l2], ask: &'l1 $crate::trace::Ask, about: &'l2 $crate::job::Domain,
                => Result<$crate::trace::Exhibit, $crate::trace::SourceError>, collect, $inner.collect(ask, about)
            );
        });
        $crate::__delegate_unless!(close [$($own)*] {
            $crate::__delegate_async!(self 'l0 &'l0 mut Self, $this, [], => (), close, $inner.close());
        });
    };
    (FaultDetector to |$this:ident| $inner:expr, except $($own:ident),*) => {
        $($crate::__delegate_knows!(FaultDetector $own);)*
        $crate::__delegate_unless!(name [$($own)*] {
            fn name(&self) -> $crate::job::Name { let $this = self; $inner.name() }
        });
        $crate::__delegate_unless!(version [$($own)*] {
            fn version(&self) -> $crate::job::Name { let $this = self; $inner.version() }
        });
        $crate::__delegate_unless!(config [$($own)*] {
            fn config(&self) -> String { let $this = self; $inner.config() }
        });
        $crate::__delegate_unless!(observe [$($own)*] {
            fn observe(
                &mut self,
                observation: &$crate::trace::Observation,
                view: &$crate::kernel::View,
                out: &mut $crate::detect::Findings,
            ) {
                let $this = self;
                $inner.observe(observation, view, out)
            }
        });
        $crate::__delegate_unless!(deadline [$($own)*] {
            fn deadline(&self) -> Option<$crate::job::JobTime> { let $this = self; $inner.deadline() }
        });
        $crate::__delegate_unless!(expire [$($own)*] {
            fn expire(&mut self, view: &$crate::kernel::View, out: &mut $crate::detect::Findings) {
                let $this = self;
                $inner.expire(view, out)
            }
        });
        $crate::__delegate_unless!(snapshot [$($own)*] {
            fn snapshot(&self) -> Option<$crate::__private::Bytes> { let $this = self; $inner.snapshot() }
        });
        $crate::__delegate_unless!(restore [$($own)*] {
            fn restore(&mut self, saved: &[u8]) -> Result<(), $crate::trace::Malformed> {
                let $this = self;
                $inner.restore(saved)
            }
        });
    };
    (RecoveryStrategy to |$this:ident| $inner:expr, except $($own:ident),*) => {
        $($crate::__delegate_knows!(RecoveryStrategy $own);)*
        $crate::__delegate_unless!(name [$($own)*] {
            fn name(&self) -> $crate::job::Name { let $this = self; $inner.name() }
        });
        $crate::__delegate_unless!(version [$($own)*] {
            fn version(&self) -> $crate::job::Name { let $this = self; $inner.version() }
        });
        $crate::__delegate_unless!(config [$($own)*] {
            fn config(&self) -> String { let $this = self; $inner.config() }
        });
        $crate::__delegate_unless!(cannot [$($own)*] {
            fn cannot(&self, job: &$crate::recover::Beforehand) -> Option<String> { let $this = self; $inner.cannot(job) }
        });
        $crate::__delegate_unless!(propose [$($own)*] {
            fn propose(
                &self,
                incident: &$crate::recover::Incident,
                view: &$crate::kernel::View,
            ) -> Result<$crate::recover::Proposal, String> {
                let $this = self;
                $inner.propose(incident, view)
            }
        });
        $crate::__delegate_unless!(advance [$($own)*] {
            fn advance(&self, run: &$crate::recover::Run, view: &$crate::kernel::View) -> $crate::recover::Next {
                let $this = self;
                $inner.advance(run, view)
            }
        });
    };
}

/// One asynchronous method as `async_trait` writes it: the macro's own attribute does not see what a macro makes.
#[doc(hidden)]
#[macro_export]
macro_rules! __delegate_async {
    (
        $self:ident $l0:lifetime $receiver:ty, $this:ident, [$($l:lifetime)*], $($argument:ident: $type:ty,)*
        => $output:ty, $name:ident, $call:expr
    ) => {
        fn $name<$l0, $($l,)* 'async_trait>(
            $self: $receiver
            $(, $argument: $type)*
        ) -> ::std::pin::Pin<Box<dyn ::std::future::Future<Output = $output> + Send + 'async_trait>>
        where
            $l0: 'async_trait,
            $($l: 'async_trait,)*
            Self: 'async_trait,
        {
            let $this = $self;
            $call
        }
    };
}

/// A method, unless it is among those that are written out.
#[doc(hidden)]
#[macro_export]
macro_rules! __delegate_unless {
    ($name:ident [] { $($method:tt)* }) => { $($method)* };
    (info [info $($own:ident)*] $method:tt) => {};
    (start [start $($own:ident)*] $method:tt) => {};
    (stop [stop $($own:ident)*] $method:tt) => {};
    (list [list $($own:ident)*] $method:tt) => {};
    (watch [watch $($own:ident)*] $method:tt) => {};
    (acknowledge [acknowledge $($own:ident)*] $method:tt) => {};
    (direct [direct $($own:ident)*] $method:tt) => {};
    (prepare [prepare $($own:ident)*] $method:tt) => {};
    (detach [detach $($own:ident)*] $method:tt) => {};
    (wind_down [wind_down $($own:ident)*] $method:tt) => {};
    (next [next $($own:ident)*] $method:tt) => {};
    (collect [collect $($own:ident)*] $method:tt) => {};
    (close [close $($own:ident)*] $method:tt) => {};
    (name [name $($own:ident)*] $method:tt) => {};
    (version [version $($own:ident)*] $method:tt) => {};
    (config [config $($own:ident)*] $method:tt) => {};
    (observe [observe $($own:ident)*] $method:tt) => {};
    (deadline [deadline $($own:ident)*] $method:tt) => {};
    (expire [expire $($own:ident)*] $method:tt) => {};
    (snapshot [snapshot $($own:ident)*] $method:tt) => {};
    (restore [restore $($own:ident)*] $method:tt) => {};
    (cannot [cannot $($own:ident)*] $method:tt) => {};
    (propose [propose $($own:ident)*] $method:tt) => {};
    (advance [advance $($own:ident)*] $method:tt) => {};
    ($name:ident [$other:ident $($own:ident)*] $method:tt) => {
        $crate::__delegate_unless!($name [$($own)*] $method);
    };
}

/// Nothing for a method of the trait, an error for another name.
#[doc(hidden)]
#[macro_export]
macro_rules! __delegate_knows {
    (Launcher info) => {};
    (Launcher start) => {};
    (Launcher stop) => {};
    (Launcher list) => {};
    (Launcher watch) => {};
    (Launcher acknowledge) => {};
    (Launcher direct) => {};
    (Launcher prepare) => {};
    (Launcher detach) => {};
    (Launcher wind_down) => {};
    (TraceSource info) => {};
    (TraceSource next) => {};
    (TraceSource collect) => {};
    (TraceSource close) => {};
    (FaultDetector name) => {};
    (FaultDetector version) => {};
    (FaultDetector config) => {};
    (FaultDetector observe) => {};
    (FaultDetector deadline) => {};
    (FaultDetector expire) => {};
    (FaultDetector snapshot) => {};
    (FaultDetector restore) => {};
    (RecoveryStrategy name) => {};
    (RecoveryStrategy version) => {};
    (RecoveryStrategy config) => {};
    (RecoveryStrategy cannot) => {};
    (RecoveryStrategy propose) => {};
    (RecoveryStrategy advance) => {};
    ($plugin:ident $name:ident) => {
        compile_error!(concat!(stringify!($plugin), " has no method ", stringify!($name)));
    };
}

#[cfg(test)]
mod tests;
