//! The codec of messages: protobuf with small buffers. A manager has two for each of 10,000 sessions, and most messages
//! are short.

use std::marker::PhantomData;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Bytes for which a buffer has room at first, and by which it grows.
const BUFFER_BYTES: usize = 512;
/// Bytes after which waiting messages are sent together.
const SEND_BYTES: usize = 32 << 10;

/// Encodes messages of type `T`, and decodes those of type `U`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallCodec<T, U> {
    fn default() -> SmallCodec<T, U> {
        SmallCodec(PhantomData)
    }
}

impl<T, U> Codec for SmallCodec<T, U>
where
    T: prost::Message + Send + 'static,
    U: prost::Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER_BYTES, SEND_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER_BYTES, SEND_BYTES))
    }
}
