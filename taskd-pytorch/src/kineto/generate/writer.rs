//! The text of a trace file, event by event, in the layout of PyTorch 2.15.

use super::names::{PROCESS, Shape};
use std::io::{self, Write};

/// Shapes of inputs, as operators record them.
const INPUTS: [&str; 4] = [
    r#""Concrete Inputs": ["", "", "1"], "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"], "Input Strides": [[4096, 1], [4096, 1], []], "Input Dims": [[8192, 4096], [8192, 4096], []], "#,
    r#""Concrete Inputs": [""], "Input type": ["c10::BFloat16"], "Input Strides": [[16777216, 4096, 1]], "Input Dims": [[2, 4096, 4096]], "#,
    r#""Concrete Inputs": ["", "", "", "1", "1"], "Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"], "Input Strides": [[1], [4096, 1], [1, 4096], [], []], "Input Dims": [[4096], [8192, 4096], [4096, 4096], [], []], "#,
    "",
];

/// Writes events, with a comma between them.
pub(super) struct Writer<W> {
    out: W,
    is_minified: bool,
    has_events: bool,
}

impl<W: Write> Writer<W> {
    pub(super) const fn new(out: W, is_minified: bool) -> Self {
        Self { out, is_minified, has_events: false }
    }

    /// Writes text. A minified file has no space outside of strings.
    fn text(&mut self, text: &str) -> io::Result<()> {
        if !self.is_minified {
            return self.out.write_all(text.as_bytes());
        }
        let mut in_string = false;
        let mut bytes = Vec::with_capacity(text.len());
        for byte in text.bytes() {
            in_string ^= byte == b'"'; // no string here has an escaped quote
            if in_string || !byte.is_ascii_whitespace() {
                bytes.push(byte);
            }
        }
        self.out.write_all(&bytes)
    }

    pub(super) fn header(&mut self, rank: u32, world_size: u32, base_ns: i64) -> io::Result<()> {
        let ranks: Vec<String> = (0..world_size).map(|rank| rank.to_string()).collect();
        self.text(&format!(
            r#"{{
  "schemaVersion": 1,
  "deviceProperties": [
    {{
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85044101120,
      "computeMajor": 9, "computeMinor": 0,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
      "regsPerBlock": 65536, "warpSize": 32,
      "sharedMemPerBlock": 49152, "numSms": 132
    }}
  ],
  "cuda_runtime_version": 13020,
  "record_shapes": 1,
  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {world_size}, "pg_count": 1, "pg_config": [{{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": {world_size}, "ranks": [{ranks}]}}], "nccl_version": "2.28.9"}},
  "host_name": "node-{host}",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": {base_ns},
  "traceEvents": ["#,
            ranks = ranks.join(", "),
            host = rank / 8,
        ))?;
        for (kind, member, value) in
            [("name", "name", "python"), ("labels", "labels", "CPU"), ("labels", "labels", "GPU 0")]
        {
            self.event(&format!(
                r#""ph": "M",
    "name": "process_{kind}",
    "ts": 5009734009629.971,
    "pid": {PROCESS},
    "tid": 0,
    "args": {{
      "{member}": "{value}"
    }}"#
            ))?;
        }
        Ok(())
    }

    pub(super) fn trailer(&mut self, end: u64) -> io::Result<()> {
        let end = micros(end);
        self.event(&format!(
            "\"ph\": \"i\",\n    \"s\": \"g\",\n    \"name\": \"Record Window End\",\n    \"pid\": \"\",\n    \"tid\": \"\",\n    \"ts\": {end}\n    "
        ))?;
        self.text("\n  ],\"traceName\": \"trace.json\" }\n")?;
        self.out.flush()
    }

    fn event(&mut self, body: &str) -> io::Result<()> {
        self.text(if self.has_events { ",\n  {\n    " } else { "\n  {\n    " })?;
        self.has_events = true;
        self.text(body)?;
        self.text("\n  }")
    }

    #[allow(clippy::too_many_arguments, reason = "the members of a span")]
    fn span(
        &mut self,
        category: &str,
        name: &str,
        place: (u64, u64),
        start: u64,
        duration: u64,
        arguments: &str,
    ) -> io::Result<()> {
        let ((pid, tid), start, duration) = (place, micros(start), micros(duration));
        self.event(&format!(
            r#""ph": "X",
    "cat": "{category}",
    "name": "{name}",
    "pid": {pid},
    "tid": {tid},
    "ts": {start},
    "dur": {duration}
    ,
    "args": {{
      {arguments}
    }}"#
        ))
    }

    #[allow(clippy::too_many_arguments, reason = "the members of a span")]
    pub(super) fn annotation(
        &mut self,
        category: &str,
        name: &str,
        pid: u64,
        tid: u64,
        start: u64,
        duration: u64,
        external: u64,
    ) -> io::Result<()> {
        let arguments = format!(r#""External id": {external},"Record function id": 0, "Ev Idx": {external}"#);
        self.span(category, name, (pid, tid), start, duration, &arguments)
    }

    pub(super) fn operator(
        &mut self,
        name: &str,
        start: u64,
        duration: u64,
        external: u64,
        inputs: u64,
    ) -> io::Result<()> {
        let inputs = usize::try_from(inputs).ok().and_then(|index| INPUTS.get(index)).unwrap_or(&"");
        let arguments = format!(r#""External id": {external},"Record function id": 0, {inputs}"Ev Idx": {external}"#);
        self.span("cpu_op", name, (PROCESS, PROCESS), start, duration, &arguments)
    }

    pub(super) fn python(&mut self, layer: u32, start: u64, duration: u64) -> io::Result<()> {
        let arguments = format!(r#""Python parent id": {}, "Python module id": {layer}, "Ev Idx": 0"#, layer + 1);
        let name = format!("nn.Module: Block_{layer}");
        self.span("python_function", &name, (PROCESS, PROCESS), start, duration, &arguments)
    }

    pub(super) fn runtime(
        &mut self,
        name: &str,
        start: u64,
        duration: u64,
        correlation: u64,
        external: u64,
    ) -> io::Result<()> {
        let arguments = format!(r#""External id": {external}, "cbid": 211, "correlation": {correlation}"#);
        self.span("cuda_runtime", name, (PROCESS, PROCESS), start, duration, &arguments)
    }

    /// The arrow from a call to its kernel.
    pub(super) fn flow(&mut self, correlation: u64, from: u64, to: u64, stream: u32) -> io::Result<()> {
        for (phase, pid, tid, at, more) in
            [("s", PROCESS, PROCESS, from, ""), ("f", 0, u64::from(stream), to, ",\n    \"bp\": \"e\"")]
        {
            let at = micros(at);
            self.event(&format!(
                "\"ph\": \"{phase}\",\n    \"id\": {correlation},\n    \"pid\": {pid},\n    \"tid\": {tid},\n    \"ts\": {at},\n    \"cat\": \"ac2g\",\n    \"name\": \"ac2g\"{more}"
            ))?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "the members of a kernel")]
    pub(super) fn kernel(
        &mut self,
        shape: Shape,
        name: &str,
        start: u64,
        duration: u64,
        stream: u32,
        correlation: u64,
        external: u64,
        (world_size, sequence): (u32, u64),
    ) -> io::Result<()> {
        let place = format!(
            r#""device": 0, "context": 1,
      "stream": {stream}, "correlation": {correlation},"#
        );
        let arguments = match shape {
            Shape::Copy => format!(
                "\"External id\": {external},\n      {place}\n      \"bytes\": 1048576, \"memory bandwidth (GB/s)\": 21.4"
            ),
            Shape::Fill => format!(
                "\"External id\": {external},\n      {place}\n      \"bytes\": 524288, \"memory bandwidth (GB/s)\": 410.1"
            ),
            _ => {
                let collective = match shape {
                    Shape::AllReduce => collective(world_size, sequence),
                    _ => String::new(),
                };
                format!(
                    r#""External id": {external},
      "queued": 0, {place}
      "registers per thread": 168,
      "shared memory": 213504,
      "blocks per SM": 0.969697,
      "warps per SM": 11.636364,
      "grid": [128, 1, 1],
      "block": [384, 1, 1],
      "est. achieved occupancy %": 18{collective}"#
                )
            }
        };
        self.span(shape.category(), name, (0, u64::from(stream)), start, duration, &arguments)
    }
}

fn collective(world_size: u32, sequence: u64) -> String {
    let ranks: Vec<String> = (0..world_size).map(|rank| rank.to_string()).collect();
    format!(
        r#", "Collective name": "allreduce", "In msg nelems": 6553600, "Out msg nelems": 6553600, "Group size": {world_size}, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[{}]", "Seq": {sequence}"#,
        ranks.join(", ")
    )
}

fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}
