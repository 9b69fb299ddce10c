"""The output of a codec is bounded, and damaged input raises the typed error."""

import gzip
import tracemalloc

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from kafka import codec as kafka_python_codec

from anabranch.protocol.compression import CompressionType, CorruptRecordError, compress, decompress
from anabranch.protocol.errors import ErrorCode

CODECS = [CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD]
MIB = 1024 * 1024
SAMPLES = [
    b"",
    b"x",
    b"anabranch " * 20,
    bytes(range(256)) * 300,
    b"a long line that compresses " * 9000,
]


@pytest.mark.parametrize("codec", list(CompressionType))
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_decompressing_gives_the_compressed_data(codec: CompressionType, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), MIB) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(data))), len(data)) == data


@pytest.mark.parametrize("level", [1, 3, 9])
@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD])
def test_levels_change_the_size_not_the_content(codec: CompressionType, level: int) -> None:
    data = SAMPLES[-1]
    assert decompress(codec, compress(codec, data, level), MIB) == data


@pytest.mark.parametrize("module", [aiokafka_codec, kafka_python_codec], ids=["aiokafka", "kafka-python"])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", SAMPLES[1:], ids=len)
def test_other_clients_codecs_agree_in_both_directions(module, codec: CompressionType, data: bytes) -> None:
    name = codec.name.lower()
    if not getattr(module, f"has_{name}")():
        pytest.skip(f"{module.__name__} has no {name} library installed")
    assert decompress(codec, getattr(module, f"{name}_encode")(data), MIB) == data
    assert getattr(module, f"{name}_decode")(compress(codec, data)) == data


def test_raw_snappy_is_read_as_librdkafka_sends_it() -> None:
    data = SAMPLES[-1]
    assert decompress(CompressionType.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), MIB) == data


def test_lz4_blocks_are_independent() -> None:
    """Java refuses linked blocks; bit 5 of the frame's flag byte marks blocks as independent."""
    assert compress(CompressionType.LZ4, SAMPLES[-1])[4] & 0x20


def test_concatenated_members_are_read_to_the_end() -> None:
    two = gzip.compress(b"first ") + gzip.compress(b"second")
    assert decompress(CompressionType.GZIP, two, MIB) == b"first second"


@pytest.mark.parametrize("codec", CODECS)
def test_output_of_exactly_the_limit_passes_and_one_byte_more_does_not(codec: CompressionType) -> None:
    packed = compress(codec, b"z" * 70_001)
    assert len(decompress(codec, packed, 70_001)) == 70_001
    with pytest.raises(CorruptRecordError) as caught:
        decompress(codec, packed, 70_000)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", CODECS)
def test_a_decompression_bomb_is_refused_without_its_size_in_memory(codec: CompressionType) -> None:
    bomb = compress(codec, bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="more than the 1048576 bytes allowed"):
            decompress(codec, bomb, MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB


def test_a_snappy_block_that_claims_4_gib_is_refused_before_allocation() -> None:
    with pytest.raises(CorruptRecordError) as caught:
        decompress(CompressionType.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x" * 20, MIB)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_false_size_in_a_gzip_trailer_allocates_no_buffer_of_that_size() -> None:
    packed = bytearray(gzip.compress(b"short"))
    packed[-4:] = b"\xff\xff\xff\x7f"
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError):
            decompress(CompressionType.GZIP, bytes(packed), 1 << 31)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_data_cut_at_any_byte_is_an_error(codec: CompressionType) -> None:
    data = b"some data worth cutting " * 30
    packed = compress(codec, data)
    for end in range(len(packed)):
        if codec is CompressionType.SNAPPY and end == 16:
            continue  # a xerial stream without blocks is a whole, empty stream
        with pytest.raises(CorruptRecordError):
            decompress(codec, packed[:end], MIB)


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_that_are_not_compressed_data_are_an_error(codec: CompressionType) -> None:
    with pytest.raises(CorruptRecordError):
        decompress(codec, b"\x82SNAPPY\x00 this is not it" + bytes(range(200)), MIB)


def test_uncompressed_data_is_bounded_too() -> None:
    with pytest.raises(CorruptRecordError):
        decompress(CompressionType.NONE, b"12345", 4)
