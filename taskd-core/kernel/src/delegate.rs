//! The macro `delegate!` for detectors and strategies, and the helpers of `taskd_core::delegate!`.

/// Forwards the methods of a plugin's trait to a wrapped plugin: the arms of `taskd_core::delegate!` for
/// [`FaultDetector`](crate::detect::FaultDetector) and [`RecoveryStrategy`](crate::recover::RecoveryStrategy).
#[doc(hidden)]
#[macro_export]
macro_rules! delegate {
    ($plugin:ident to |$this:ident| $inner:expr) => {
        $crate::delegate!($plugin to |$this| $inner, except);
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
                view: &$crate::state::View,
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
            fn expire(&mut self, view: &$crate::state::View, out: &mut $crate::detect::Findings) {
                let $this = self;
                $inner.expire(view, out)
            }
        });
        $crate::__delegate_unless!(snapshot [$($own)*] {
            fn snapshot(&self) -> Option<$crate::__private::Bytes> { let $this = self; $inner.snapshot() }
        });
        $crate::__delegate_unless!(restore [$($own)*] {
            fn restore(&mut self, saved: &[u8]) -> Result<(), $crate::trace::DecodeError> {
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
        $crate::__delegate_unless!(unsupported_reason [$($own)*] {
            fn unsupported_reason(&self, job: &$crate::recover::JobProfile) -> Option<String> { let $this = self; $inner.unsupported_reason(job) }
        });
        $crate::__delegate_unless!(propose [$($own)*] {
            fn propose(
                &self,
                incident: &$crate::recover::Incident,
                view: &$crate::state::View,
            ) -> Result<$crate::recover::Proposal, $crate::recover::RefusalError> {
                let $this = self;
                $inner.propose(incident, view)
            }
        });
        $crate::__delegate_unless!(advance [$($own)*] {
            fn advance(&self, run: &$crate::recover::PlanExecution, view: &$crate::state::View) -> $crate::recover::Advance {
                let $this = self;
                $inner.advance(run, view)
            }
        });
    };
}

/// Expands to the method, unless its name is in the list of methods that are written out.
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
    (send_directives [send_directives $($own:ident)*] $method:tt) => {};
    (prepare [prepare $($own:ident)*] $method:tt) => {};
    (detach [detach $($own:ident)*] $method:tt) => {};
    (begin_shutdown [begin_shutdown $($own:ident)*] $method:tt) => {};
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
    (unsupported_reason [unsupported_reason $($own:ident)*] $method:tt) => {};
    (propose [propose $($own:ident)*] $method:tt) => {};
    (advance [advance $($own:ident)*] $method:tt) => {};
    ($name:ident [$other:ident $($own:ident)*] $method:tt) => {
        $crate::__delegate_unless!($name [$($own)*] $method);
    };
}

/// Expands to nothing for a method of the trait, and to a compile error for any other name.
#[doc(hidden)]
#[macro_export]
macro_rules! __delegate_knows {
    (Launcher info) => {};
    (Launcher start) => {};
    (Launcher stop) => {};
    (Launcher list) => {};
    (Launcher watch) => {};
    (Launcher acknowledge) => {};
    (Launcher send_directives) => {};
    (Launcher prepare) => {};
    (Launcher detach) => {};
    (Launcher begin_shutdown) => {};
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
    (RecoveryStrategy unsupported_reason) => {};
    (RecoveryStrategy propose) => {};
    (RecoveryStrategy advance) => {};
    ($plugin:ident $name:ident) => {
        compile_error!(concat!(stringify!($plugin), " has no method ", stringify!($name)));
    };
}
