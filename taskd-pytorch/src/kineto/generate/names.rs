//! Names of operators and kernels as PyTorch and its libraries have them.

use super::Random;

/// Number of the simulated process, and of its main thread.
pub(super) const PROCESS: u64 = 32_249;

/// Kinds of work of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Matrix,
    Elementwise,
    Normalization,
    Attention,
    Optimizer,
    Copy,
    Fill,
    AllReduce,
}

/// Operators of a forward pass through one layer, outermost first, and the work that the innermost one launches.
pub(super) const FORWARD: &[(&[&str], Shape)] = &[
    (&["aten::layer_norm", "aten::native_layer_norm"], Shape::Normalization),
    (&["aten::linear", "aten::addmm"], Shape::Matrix),
    (&["aten::split", "aten::narrow", "aten::slice"], Shape::Elementwise),
    (
        &[
            "aten::scaled_dot_product_attention",
            "aten::_scaled_dot_product_flash_attention",
            "aten::_flash_attention_forward",
        ],
        Shape::Attention,
    ),
    (&["aten::linear", "aten::addmm"], Shape::Matrix),
    (&["aten::dropout", "aten::native_dropout"], Shape::Elementwise),
    (&["aten::add"], Shape::Elementwise),
    (&["aten::layer_norm", "aten::native_layer_norm"], Shape::Normalization),
    (&["aten::linear", "aten::addmm"], Shape::Matrix),
    (&["aten::gelu"], Shape::Elementwise),
    (&["aten::linear", "aten::addmm"], Shape::Matrix),
    (&["aten::add"], Shape::Elementwise),
];

/// Operators of a backward pass through one layer.
pub(super) const BACKWARD: &[(&[&str], Shape)] = &[
    (&["autograd::engine::evaluate_function: AddBackward0", "AddBackward0"], Shape::Elementwise),
    (&["autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::mm"], Shape::Matrix),
    (
        &["autograd::engine::evaluate_function: GeluBackward0", "GeluBackward0", "aten::gelu_backward"],
        Shape::Elementwise,
    ),
    (&["autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::mm"], Shape::Matrix),
    (
        &[
            "autograd::engine::evaluate_function: NativeLayerNormBackward0",
            "NativeLayerNormBackward0",
            "aten::native_layer_norm_backward",
        ],
        Shape::Normalization,
    ),
    (&["autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::mm"], Shape::Matrix),
    (
        &[
            "autograd::engine::evaluate_function: ScaledDotProductFlashAttentionBackward0",
            "aten::_scaled_dot_product_flash_attention_backward",
        ],
        Shape::Attention,
    ),
    (&["autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::mm"], Shape::Matrix),
    (
        &[
            "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
            "torch::autograd::AccumulateGrad",
            "aten::add_",
        ],
        Shape::Elementwise,
    ),
];

impl Shape {
    /// Returns the call of the runtime that starts this work.
    pub(super) const fn call(self) -> &'static str {
        match self {
            Self::Copy => "cudaMemcpyAsync",
            Self::Fill => "cudaMemsetAsync",
            Self::Matrix | Self::AllReduce => "cudaLaunchKernelExC",
            _ => "cudaLaunchKernel",
        }
    }

    /// Returns the category of the event.
    pub(super) const fn category(self) -> &'static str {
        match self {
            Self::Copy => "gpu_memcpy",
            Self::Fill => "gpu_memset",
            _ => "kernel",
        }
    }

    /// Returns the range of durations in nanoseconds.
    pub(super) const fn duration_ns(self) -> (u64, u64) {
        match self {
            Self::Matrix => (30_000, 380_000),
            Self::Elementwise => (2_000, 40_000),
            Self::Normalization => (4_000, 50_000),
            Self::Attention => (60_000, 300_000),
            Self::Optimizer => (20_000, 90_000),
            Self::Copy => (1_500, 60_000),
            Self::Fill => (1_000, 6_000),
            Self::AllReduce => (200_000, 1_400_000),
        }
    }

    /// Returns the name of the kernel. A model has a few hundred of them.
    pub(super) fn kernel(self, random: &mut Random) -> String {
        let tile = [64, 128, 256][usize::try_from(random.between(0, 3)).unwrap_or_default()];
        let stages = random.between(3, 6);
        let variant = random.between(0, 24);
        match self {
            Self::Matrix => format!(
                "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{tile}x128x64_warpgroupsize1x1x{stages}_execute_segment_k_off_kernel__5x_cublas"
            ),
            Self::Elementwise => format!(
                "void at::native::vectorized_elementwise_kernel<{stages}, at::native::(anonymous namespace)::launch_{variant}_kernel(at::TensorIteratorBase&)::{{lambda()#1}}::operator()() const::{{lambda(c10::BFloat16)#{stages}}}, std::array<char*, 2ul> >(int, at::native::{{lambda(c10::BFloat16)#1}}, std::array<char*, 2ul>)"
            ),
            Self::Normalization => format!(
                "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, {variant}>(int, float, c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)"
            ),
            Self::Attention => format!(
                "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<{tile}, 128, 32, 4, false, false, cutlass::bfloat16_t>, true, {stages}, false>(pytorch_flash::Flash_fwd_params)"
            ),
            Self::Optimizer => format!(
                "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<{stages}>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4> >(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)"
            ),
            Self::Copy => "Memcpy HtoD (Pinned -> Device)".into(),
            Self::Fill => "Memset (Device)".into(),
            Self::AllReduce => "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)".into(),
        }
    }
}
