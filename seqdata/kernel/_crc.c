/* Checksums: three streams of the processor's own instruction where it has one, else eight tables.
 *
 * The instruction takes three cycles but one can begin in each, so that three neighbouring runs of
 * bytes are done side by side; a run's checksum is moved over the bytes behind it by a table that
 * was made for their number. Where the processor multiplies polynomials 512 bits wide, long runs are
 * folded by that first, which is twice as fast. CRC-32, which stores use that were written without
 * this kernel, has no instruction: it is folded, too, and the rest goes through tables.
 */
#include "_crc.h"
#include <string.h>

#define TABLES 8
#define RUNS 2
static const uint32_t POLYNOMIAL[CRC_KINDS] = {0x82F63B78, 0xEDB88320}; /* bits reflected */
static const size_t RUN[RUNS] = {256, 64}; /* bytes; powers of two */

typedef uint32_t Table[256];
static Table tables[CRC_KINDS][TABLES];
static Table shifts[RUNS][4]; /* crc32c of what is followed by RUN[i] zeros, byte by byte */
static int has_instruction;

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define INSTRUCTION __attribute__((target("sse4.2")))
#define FOUND() (__builtin_cpu_init(), __builtin_cpu_supports("sse4.2") != 0)
#define WORD(crc, word) _mm_crc32_u64(crc, word)
#define BYTE(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32) && !defined(__AARCH64EB__)
#include <arm_acle.h>
#define INSTRUCTION
#define FOUND() 1
#define WORD(crc, word) __crc32cd((uint32_t)(crc), word)
#define BYTE(crc, byte) __crc32cb((uint32_t)(crc), byte)
#endif

#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 10 : __GNUC__ >= 11)
#include <immintrin.h>
#define FOLDED 256 /* bytes at a time */
#define WIDE __attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq")))
#define FOUND_WIDE() \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") && \
     __builtin_cpu_supports("pclmul"))
static int has_wide;
/* Factors to fold over 256, 64 and 16 bytes. */
static uint32_t over_all[CRC_KINDS][2], over_one[CRC_KINDS][2], over_lane[CRC_KINDS][2];
#endif

/* Multiply a matrix of bits, a column each, with a vector. */
static uint32_t times(const uint32_t *columns, uint32_t vector) {
    uint32_t sum = 0;
    for (; vector; vector >>= 1, columns++)
        if (vector & 1) sum ^= *columns;
    return sum;
}

static void make_shift(size_t bytes, Table *shift) {
    uint32_t columns[32], squared[32]; /* at first of one byte of zeros, twice as many each time */
    for (int i = 0; i < 32; i++) {
        uint32_t bit = (uint32_t)1 << i;
        columns[i] = tables[CRC32C][0][bit & 0xFF] ^ (bit >> 8);
    }
    for (; bytes > 1; bytes /= 2) {
        for (int i = 0; i < 32; i++) squared[i] = times(columns, columns[i]);
        memcpy(columns, squared, sizeof columns);
    }
    for (int place = 0; place < 4; place++)
        for (uint32_t byte = 0; byte < 256; byte++)
            shift[place][byte] = times(columns, byte << (8 * place));
}

#ifdef WIDE
/* Give x^degree modulo the polynomial, bits reflected. */
static uint32_t power(int kind, int degree) {
    uint32_t value = 0x80000000;
    while (degree--) value = value & 1 ? (value >> 1) ^ POLYNOMIAL[kind] : value >> 1;
    return value;
}

/* What moves 16 bytes over so many bits: their first half, which is 64 bits further, and their
 * second. The product of 64 reflected bits and these 32 is 33 bits too far. */
static void make_fold(int kind, int bits, uint32_t *fold) {
    fold[0] = power(kind, bits + 64 - 33);
    fold[1] = power(kind, bits - 33);
}
#endif

void crc_prepare(void) {
    for (int kind = 0; kind < CRC_KINDS; kind++) {
        Table *table = tables[kind];
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++)
                crc = crc & 1 ? (crc >> 1) ^ POLYNOMIAL[kind] : crc >> 1;
            table[0][byte] = crc;
        }
        for (int next = 1; next < TABLES; next++)
            for (int byte = 0; byte < 256; byte++) {
                uint32_t crc = table[next - 1][byte];
                table[next][byte] = table[0][crc & 0xFF] ^ (crc >> 8);
            }
    }
    for (int i = 0; i < RUNS; i++) make_shift(RUN[i], shifts[i]);
#ifdef INSTRUCTION
    has_instruction = FOUND();
#endif
#ifdef WIDE
    for (int kind = 0; kind < CRC_KINDS; kind++) {
        make_fold(kind, 8 * FOLDED, over_all[kind]);
        make_fold(kind, 512, over_one[kind]);
        make_fold(kind, 128, over_lane[kind]);
    }
    has_wide = has_instruction && FOUND_WIDE();
#endif
}

int crc_kind(const char *name) {
    if (!strcmp(name, "crc32c")) return CRC32C;
    return strcmp(name, "crc32") ? -1 : CRC32;
}

static uint32_t by_tables(int kind, uint32_t crc, const unsigned char *at, size_t bytes) {
    const Table *table = (const Table *)tables[kind];
    for (; bytes >= 8; bytes -= 8, at += 8) {
        crc ^= at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = table[7][crc & 0xFF] ^ table[6][crc >> 8 & 0xFF] ^ table[5][crc >> 16 & 0xFF] ^
              table[4][crc >> 24] ^ table[3][at[4]] ^ table[2][at[5]] ^ table[1][at[6]] ^
              table[0][at[7]];
    }
    while (bytes--) crc = table[0][(crc ^ *at++) & 0xFF] ^ (crc >> 8);
    return crc;
}

#ifdef INSTRUCTION
static uint64_t load(const unsigned char *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static uint64_t move(const Table *shift, uint64_t crc) {
    return shift[0][crc & 0xFF] ^ shift[1][crc >> 8 & 0xFF] ^ shift[2][crc >> 16 & 0xFF] ^
           shift[3][crc >> 24 & 0xFF];
}

#ifdef WIDE
WIDE static __m512i fold(__m512i value, __m512i by, __m512i next) {
    __m512i first = _mm512_clmulepi64_epi128(value, by, 0x00);
    __m512i second = _mm512_clmulepi64_epi128(value, by, 0x11);
    return _mm512_ternarylogic_epi64(first, second, next, 0x96); /* xor of three */
}

WIDE static __m128i fold_lane(__m128i value, __m128i by, __m128i next) {
    __m128i first = _mm_clmulepi64_si128(value, by, 0x00);
    return _mm_xor_si128(_mm_xor_si128(first, _mm_clmulepi64_si128(value, by, 0x11)), next);
}

WIDE static __m128i factors(const uint32_t *fold) { return _mm_set_epi64x(fold[1], fold[0]); }

/* Go on with a checksum over a multiple of FOLDED bytes. */
WIDE static uint32_t by_folding(int kind, uint32_t crc, const unsigned char *at, size_t bytes) {
    __m512i all = _mm512_broadcast_i32x4(factors(over_all[kind]));
    __m512i one = _mm512_broadcast_i32x4(factors(over_one[kind]));
    __m128i lane = factors(over_lane[kind]);
    __m512i a = _mm512_loadu_si512(at), b = _mm512_loadu_si512(at + 64);
    __m512i c = _mm512_loadu_si512(at + 128), d = _mm512_loadu_si512(at + 192);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi64_si128((long long)crc)));
    for (at += FOLDED, bytes -= FOLDED; bytes; at += FOLDED, bytes -= FOLDED) {
        a = fold(a, all, _mm512_loadu_si512(at));
        b = fold(b, all, _mm512_loadu_si512(at + 64));
        c = fold(c, all, _mm512_loadu_si512(at + 128));
        d = fold(d, all, _mm512_loadu_si512(at + 192));
    }
    d = fold(fold(fold(a, one, b), one, c), one, d);
    __m128i last = _mm512_castsi512_si128(d);
    last = fold_lane(last, lane, _mm512_extracti32x4_epi32(d, 1));
    last = fold_lane(last, lane, _mm512_extracti32x4_epi32(d, 2));
    last = fold_lane(last, lane, _mm512_extracti32x4_epi32(d, 3));
    if (kind == CRC32C) {
        uint64_t half = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(last));
        return (uint32_t)_mm_crc32_u64(half, (uint64_t)_mm_extract_epi64(last, 1));
    }
    unsigned char rest[16];
    _mm_storeu_si128((__m128i *)rest, last);
    return by_tables(kind, 0, rest, sizeof rest);
}
#endif

INSTRUCTION static uint32_t by_instruction(const unsigned char *at, size_t bytes) {
    uint64_t crc = 0xFFFFFFFF;
#ifdef WIDE
    if (has_wide && bytes >= 4 * FOLDED) {
        size_t folded = bytes - bytes % FOLDED;
        crc = by_folding(CRC32C, (uint32_t)crc, at, folded);
        at += folded, bytes -= folded;
    }
#endif
    for (int i = 0; i < RUNS; i++) {
        size_t run = RUN[i];
        for (; bytes >= 3 * run; bytes -= 3 * run, at += 3 * run) {
            uint64_t second = 0, third = 0;
            for (size_t b = 0; b < run; b += 8) {
                crc = WORD(crc, load(at + b));
                second = WORD(second, load(at + run + b));
                third = WORD(third, load(at + 2 * run + b));
            }
            crc = move((const Table *)shifts[i], crc) ^ second;
            crc = move((const Table *)shifts[i], crc) ^ third;
        }
    }
    for (; bytes >= 8; bytes -= 8, at += 8) crc = WORD(crc, load(at));
    while (bytes--) crc = BYTE(crc, *at++);
    return ~(uint32_t)crc;
}
#endif

uint32_t crc_of(int kind, const void *data, size_t bytes) {
#ifdef INSTRUCTION
    if (kind == CRC32C && has_instruction) return by_instruction(data, bytes);
#endif
    const unsigned char *at = data;
    uint32_t crc = 0xFFFFFFFF;
#ifdef WIDE
    if (has_wide && bytes >= 4 * FOLDED) {
        size_t folded = bytes - bytes % FOLDED;
        crc = by_folding(kind, crc, at, folded);
        at += folded, bytes -= folded;
    }
#endif
    return ~by_tables(kind, crc, at, bytes);
}
