/* libtaskd: what a training process does, recorded into memory that outlives it. Version 1.
 *
 * Every function can be called from any thread, at any time, also when nothing was opened: then it does nothing. None of them
 * fails the program, prints, waits for anybody, or, but for taskd_beat, starts a thread. In a process that was forked from the one that records
 * they do nothing.
 *
 * Link with -ltaskd, or load the library that the environment variable TASKD_LIB names.
 */
#ifndef TASKD_H
#define TASKD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds. Those from TASKD_USER to TASKD_USER_LAST are yours. The four before them cost more than the others, and are off
 * unless somebody switches them on. */
enum {
  TASKD_STEP = 1,            /* a training step */
  TASKD_DATALOADER = 2,      /* waiting for the next batch */
  TASKD_SAVE_CHECKPOINT = 3, /* saving a checkpoint */
  TASKD_FORWARD = 4,         /* the forward pass */
  TASKD_COMMUNICATION = 5,   /* a collective or point-to-point operation */
  TASKD_KERNEL = 6,          /* work of a device */
  TASKD_COPY = 7,            /* a copy or a fill of a device's memory */
  TASKD_API = 8,             /* a call into the vendor's runtime */
  TASKD_MARKER = 9,          /* a range or a moment that was named for profilers */
  TASKD_USER = 16,
  TASKD_USER_LAST = 63
};

/* Operations. */
enum {
  TASKD_OTHER_OP = 0,
  TASKD_ALL_REDUCE = 1,
  TASKD_ALL_GATHER = 2,
  TASKD_REDUCE_SCATTER = 3,
  TASKD_BROADCAST = 4,
  TASKD_REDUCE = 5,
  TASKD_GATHER = 6,
  TASKD_SCATTER = 7,
  TASKD_ALL_TO_ALL = 8,
  TASKD_BARRIER = 9,
  TASKD_SEND = 10,
  TASKD_RECV = 11
};

/* Types of elements. */
enum {
  TASKD_OTHER_TYPE = 0,
  TASKD_F32 = 1,
  TASKD_F16 = 2,
  TASKD_BF16 = 3,
  TASKD_F64 = 4,
  TASKD_I8 = 5,
  TASKD_I16 = 6,
  TASKD_I32 = 7,
  TASKD_I64 = 8,
  TASKD_U8 = 9,
  TASKD_U16 = 10,
  TASKD_U32 = 11,
  TASKD_U64 = 12,
  TASKD_BOOL = 13
};

/* A kind, and the name of what is done, a number that taskd_name gave, or 0 for none. */
#define TASKD_NAMED(kind, name) ((uint64_t)(kind) | (uint64_t)(name) << 32)

/* Begins to record, if this process is a rank: the one that a launcher has laid out memory for. 1: it records; 0: it is not
 * to; below 0: it was to, and cannot. Once is enough, early in the program; what it returned it returns again. A thread that
 * calls it while another one opens gets 0. */
int taskd_open(void);

/* Why this process does not record, in a sentence; empty where it does. Never NULL, never to be freed. */
const char *taskd_why(void);

/* The address of a word in which bit (1 << kind) is set while the kind is recorded. Others set it, at any time: to be read
 * anew whenever it is needed. Never NULL. To be asked for after taskd_open, and again in a forked process. */
const uint64_t *taskd_switches(void);

/* The number of a name, the same for the same name; 0: there is no room for another. To be asked for once for each name. It
 * is UTF-8 of at most 255 bytes; what is longer is cut. */
uint32_t taskd_name(const char *text, size_t length);

/* Begins a range; kind_and_name is made with TASKD_NAMED. Returns what ends it, or 0: its kind is off, or there was no room. */
uint64_t taskd_begin(uint64_t kind_and_name);

/* Begins a training step, by its number as the program counts. Its time on the CPU is taken, too, if the same thread ends
 * it. */
uint64_t taskd_begin_step(uint64_t number);

/* What is communicated. */
typedef struct {
  uint32_t op;        /* an operation */
  uint32_t data_type; /* a type of elements */
  uint32_t group;     /* the name of the group, a number that taskd_name gave; 0 for none */
  uint32_t peer;      /* the other rank, or the root, as a global rank; UINT32_MAX for none */
  uint64_t elements;  /* of the input on this rank */
  uint64_t bytes;     /* the same in bytes */
  uint64_t sequence;  /* which operation of its group it is, from 0; UINT64_MAX for none */
} taskd_communication;

/* Begins a communication. NULL: nothing is known of it. "send" and "recv" are the names of sends and receives that
 * end as soon as the data was transferred on the host: the time of their transfers is judged. Others, which end when
 * the program waits for them or run on a device, need other names, such as "isend" and "irecv". */
uint64_t taskd_begin_communication(uint32_t name, const taskd_communication *what);

/* Ends a range, a step or a communication, on any thread, and also when its kind was switched off meanwhile. 0 is ignored. */
void taskd_end(uint64_t range);

/* Records that something happened, or a figure. */
void taskd_mark(uint64_t kind_and_name);
void taskd_counter(uint64_t kind_and_name, double value);

/* Says that the program has a hook for a kind: without, the kind is shown as not supported. */
void taskd_hooked(uint32_t kind);

/* Says why a kind is not recorded though it is on, such as "another profiler is active"; length 0: nothing keeps it any
 * more. */
void taskd_except(uint32_t kind, const char *reason, size_t length);

/* Writes the time of CLOCK_MONOTONIC, in nanoseconds, into a word: at once, and then every so many milliseconds, 10 to 60,000,
 * from a thread that is started for it and gets none of the program's signals. For programs whose interpreter can be held up
 * for long. The word must stay as long as the process. 1: it does, 0: there is no thread to be had. */
int taskd_beat(uint64_t *word, uint32_t every_ms);

/* What somebody else has recorded, such as a vendor's trace interface: when it was and how long it took, by the system's
 * calendar (CLOCK_REALTIME, in nanoseconds), afterwards, and in any order. */
enum { TASKD_SPAN = 1, TASKD_INSTANT = 2, TASKD_FIGURE = 3 };

/* Which of a record's fields count beside the first ones. */
enum {
  TASKD_PLAIN = 0,
  TASKD_OF_A_STEP = 1,                /* number: the step's */
  TASKD_OF_A_COMMUNICATION = 2,       /* op, data_type, group, peer, elements, bytes, number: of its group, UINT64_MAX for none */
  TASKD_OF_A_DEVICE = 3,              /* device, stream, bytes, number: its correlation, 0 for none */
  TASKD_OF_A_DEVICES_COMMUNICATION = 4 /* op, data_type, group, peer, device, stream, bytes, number: its correlation */
};

typedef struct {
  uint64_t unix_nanos; /* when, or when it began; 0: nobody knows */
  uint64_t nanos;      /* of a span: how long it took */
  double value;        /* of a figure */
  uint32_t kind;
  uint32_t name;  /* a number that taskd_name gave; 0 for none */
  uint32_t event; /* TASKD_SPAN, TASKD_INSTANT, TASKD_FIGURE */
  uint32_t form;  /* TASKD_PLAIN and so on */
  uint32_t thread; /* the thread that did it; 0 for none, as for what a device does */
  uint32_t device; /* UINT32_MAX for none */
  uint32_t stream; /* UINT32_MAX for none */
  uint32_t op;
  uint32_t data_type;
  uint32_t group;
  uint32_t peer; /* UINT32_MAX for none */
  uint32_t reserved; /* 0 */
  uint64_t elements;
  uint64_t bytes;
  uint64_t number;
} taskd_record;

/* Brings records, whether their kinds are on or not: who brings them has recorded what was on. Returns how many were taken,
 * the first ones. The others are still the caller's: room is made when records are taken out, every 100 ms or so, and it never
 * writes over what was not. Nobody but the caller can count what it gives up: best as a figure among the records. To be called
 * with many at a time (each call reads the clocks), by one thread or by few: each takes a place among those that record. */
size_t taskd_import(const taskd_record *records, size_t count);

#ifdef __cplusplus
}
#endif

#endif
