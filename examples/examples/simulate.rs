//! Simulates jobs (draft).
use taskd_core::sim::{self, SimConfig};
fn main() {
    let args: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let (from, n) = (args[0], args[1]);
    let config = SimConfig::default();
    let t = std::time::Instant::now();
    let mut steps = 0; let mut inputs = 0;
    let mut by = std::collections::BTreeMap::<&str, Vec<u64>>::new();
    let mut branches = std::collections::BTreeMap::new();
    let mut sim_s = 0.0; let mut restarts = 0;
    for seed in from..from + n {
        let o = sim::run(seed, &config, &|| sim::drawn(seed));
        steps += o.rank_steps; inputs += o.inputs;
        sim_s += o.report.ended.as_nanos() as f64 / 1e9; restarts += o.report.restarts;
        for (b, c) in &o.counts.branches { *branches.entry(*b).or_insert(0u64) += c; }
        if let Some((at, v)) = &o.violation {
            by.entry(v.invariant()).or_default().push(seed);
            if n <= 3 {
                let (_, lines) = sim::explain(seed, &config, &|| sim::drawn(seed), args.get(2).copied().unwrap_or(60) as usize);
                for l in lines { println!("{l}"); }
            }
            if by[v.invariant()].len() <= 3 { println!("seed {seed} ranks {} at {at}: {v}", o.ranks); }
        } else if n <= 3 { println!("{o:?}"); }
        if seed % 20 == 0 && let Err(e) = sim::repeat(seed, &config, &|| sim::drawn(seed)) { println!("REPEAT {e}"); }
    }
    let wall = t.elapsed();
    for b in taskd_core::kernel::Branch::ALL { println!("{:20} {}", b.as_str(), branches.get(b).copied().unwrap_or(0)); }
    for (k, v) in &by { println!("{k}: {} {:?}", v.len(), &v[..v.len().min(10)]); }
    println!("{steps} rank-steps {inputs} inputs in {wall:?}: {:.0} ns each; {} s simulated each, {restarts} restarts", wall.as_nanos() as f64 / steps as f64, sim_s / n as f64);
}
