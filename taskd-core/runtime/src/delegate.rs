//! The macro `delegate!`: forwards the methods of a plugin's trait to a wrapped plugin, unchanged.

/// Forwards the methods of a plugin's trait to a wrapped plugin, so that a decorator implements only the methods that
/// it changes.
///
/// Invoke the macro inside the implementation of [`Launcher`](crate::launch::Launcher),
/// [`TraceSource`](crate::trace::TraceSource), [`FaultDetector`](crate::detect::FaultDetector) or
/// [`RecoveryStrategy`](crate::recover::RecoveryStrategy). Its arguments are the trait, an expression for the wrapped
/// plugin, and after `except` the methods that the implementation writes out itself. All other methods are forwarded,
/// including those that a later version of taskd adds. This matters because many methods have a default that means
/// "this plugin cannot": a decorator that keeps such a default hides the ability of the wrapped plugin.
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
/// A name after `except` that is not a method of the trait is a compile error, and so is a method that is both
/// forwarded and written out.
#[macro_export]
macro_rules! delegate {
    ($plugin:ident to |$this:ident| $inner:expr) => {
        $crate::delegate!($plugin to |$this| $inner, except);
    };
    (Launcher to |$this:ident| $inner:expr, except $($own:ident),*) => {
        $($crate::__private::kernel::__delegate_knows!(Launcher $own);)*
        $crate::__private::kernel::__delegate_unless!(info [$($own)*] {
            fn info(&self) -> $crate::launch::LauncherInfo { let $this = self; $inner.info() }
        });
        $crate::__private::kernel::__delegate_unless!(start [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, ['l1], batch: &'l1 $crate::launch::StartBatch,
                => Result<(), $crate::launch::LaunchError>, start, $inner.start(batch)
            );
        });
        $crate::__private::kernel::__delegate_unless!(stop [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, ['l1], procs: &'l1 [$crate::job::ProcId], grace: ::std::time::Duration,
                => Result<(), $crate::launch::LaunchError>, stop, $inner.stop(procs, grace)
            );
        });
        $crate::__private::kernel::__delegate_unless!(list [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, [],
                => Result<$crate::launch::Listing, $crate::launch::LaunchError>, list, $inner.list()
            );
        });
        $crate::__private::kernel::__delegate_unless!(watch [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, [], from: $crate::launch::Revision,
                => Result<(Vec<$crate::launch::Change>, $crate::launch::Revision), $crate::launch::LaunchError>,
                watch, $inner.watch(from)
            );
        });
        $crate::__private::kernel::__delegate_unless!(acknowledge [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, ['l1], exits: &'l1 [$crate::job::ProcId],
                => Result<(), $crate::launch::LaunchError>, acknowledge, $inner.acknowledge(exits)
            );
        });
        $crate::__private::kernel::__delegate_unless!(send_directives [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, ['l1], id: $crate::job::CommandId, batch: &'l1 $crate::launch::DirectiveBatch,
                => Result<(), $crate::launch::LaunchError>, send_directives, $inner.send_directives(id, batch)
            );
        });
        $crate::__private::kernel::__delegate_unless!(prepare [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, ['l1 'l2], batch: &'l1 $crate::launch::StartBatch,
                options: &'l2 $crate::launch::PrepareOptions,
                => Result<(), $crate::launch::LaunchError>, prepare, $inner.prepare(batch, options)
            );
        });
        $crate::__private::kernel::__delegate_unless!(detach [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 Self, $this, [], keep: ::std::time::Duration,
                => Result<(), $crate::launch::LaunchError>, detach, $inner.detach(keep)
            );
        });
        $crate::__private::kernel::__delegate_unless!(begin_shutdown [$($own)*] {
            fn begin_shutdown(&self, grace: ::std::time::Duration) { let $this = self; $inner.begin_shutdown(grace) }
        });
    };
    (TraceSource to |$this:ident| $inner:expr, except $($own:ident),*) => {
        $($crate::__private::kernel::__delegate_knows!(TraceSource $own);)*
        $crate::__private::kernel::__delegate_unless!(info [$($own)*] {
            fn info(&self) -> $crate::trace::SourceInfo { let $this = self; $inner.info() }
        });
        $crate::__private::kernel::__delegate_unless!(next [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 mut Self, $this, [],
                => Option<Result<$crate::trace::TraceBatch, $crate::trace::SourceError>>, next, $inner.next()
            );
        });
        $crate::__private::kernel::__delegate_unless!(collect [$($own)*] {
            $crate::__delegate_async!(
                self 'l0 &'l0 mut Self, $this, ['l1 'l2], ask: &'l1 $crate::trace::Probe, about: &'l2 $crate::job::Domain,
                => Result<$crate::trace::ProbeResult, $crate::trace::SourceError>, collect, $inner.collect(ask, about)
            );
        });
        $crate::__private::kernel::__delegate_unless!(close [$($own)*] {
            $crate::__delegate_async!(self 'l0 &'l0 mut Self, $this, [], => (), close, $inner.close());
        });
    };
    ($plugin:ident to |$this:ident| $inner:expr, except $($own:ident),*) => {
        $crate::__private::kernel::delegate!($plugin to |$this| $inner, except $($own),*);
    };
}

/// Expands to one asynchronous method in the form that `async_trait` generates, because its attribute does not see
/// methods that a macro generates.
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
