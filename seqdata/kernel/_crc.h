/* CRC-32C (Castagnoli) and CRC-32 (zlib's), as fast as the processor lets them be. */
#ifndef SEQDATA_CRC_H
#define SEQDATA_CRC_H
#include <stddef.h>
#include <stdint.h>

enum { CRC32C, CRC32, CRC_KINDS };

/* Make the tables and look at the processor; to be called once, before the others. */
void crc_prepare(void);

/* Give the number that an algorithm has here, or -1. */
int crc_kind(const char *name);

/* Give the checksum of some bytes. */
uint32_t crc_of(int kind, const void *data, size_t bytes);

#endif
