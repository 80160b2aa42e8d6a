"""libtaskd through ctypes: slower than its own Python module, and available wherever ctypes is.

For a kind that is off, no C function is called: the call would take longer than all the rest.
"""

PLACES_MAX = 4096  # cached places; at the limit the cache is cleared


class Functions:
    """The functions of the library, under the names in its Python module."""

    def __init__(self, ctypes, library):
        u32, u64, size, text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_char_p
        long = ctypes.c_void_p  # a u64 that is passed in two thirds of the time

        def function(name, result, *arguments):
            found = getattr(library, "taskd_" + name)
            found.restype, found.argtypes = result, arguments
            return found

        opened = function("open", ctypes.c_int)()
        address = function("switches", ctypes.c_void_p)()  # of this process's recorder, once it is open
        # A bit for each kind, little endian. Read by bytes: Python caches small integers, and not the whole word.
        kinds = memoryview((ctypes.c_ubyte * 8).from_address(address)).cast("B")
        begin = function("begin", u64, long)
        begin_step = function("begin_step", u64, long)
        mark = function("mark", None, long)
        counter = function("counter", None, long, ctypes.c_double)
        name = function("name", u32, text, size)
        why = function("why", text)
        except_ = function("except", None, u32, text, size)

        class Communication(ctypes.Structure):
            _fields_ = [(field, u32) for field in ("op", "data_type", "group", "peer")]
            _fields_ += [(field, u64) for field in ("elements", "bytes", "sequence")]

        begin_communication = function("begin_communication", u64, u32, ctypes.POINTER(Communication))
        pointer = ctypes.byref

        places = {}  # by kind and name: index of the byte with the kind's bit, and the bit

        def place_of(kind_and_name):
            if len(places) >= PLACES_MAX:
                places.clear()
            place = places[kind_and_name] = (kind_and_name >> 3 & 7, 1 << (kind_and_name & 7))
            return place

        def on_begin(kind_and_name):
            try:
                at, bit = places[kind_and_name]
            except KeyError:
                at, bit = place_of(kind_and_name)
            return begin(kind_and_name) if kinds[at] & bit else 0

        def on_begin_step(number):
            return begin_step(number) if kinds[0] & 2 else 0

        def on_begin_communication(name, op, data_type, group, peer, elements, bytes, sequence):
            if not kinds[0] & 32:
                return 0
            return begin_communication(
                name, pointer(Communication(op, data_type, group, peer, elements, bytes, sequence))
            )

        def is_recorded(kind_and_name):
            at, bit = places.get(kind_and_name) or place_of(kind_and_name)
            return kinds[at] & bit

        def on_mark(kind_and_name):
            if is_recorded(kind_and_name):
                mark(kind_and_name)

        def on_counter(kind_and_name, value):
            if is_recorded(kind_and_name):
                counter(kind_and_name, value)

        def encoded(text):
            return text.encode("utf-8", "replace")

        def name_of(text):
            text = encoded(text)
            return name(text, len(text))

        def set_exception(kind, reason):
            reason = encoded(reason)
            except_(kind, reason, len(reason))

        self.open = lambda: opened
        self.why = lambda: (why() or b"").decode("utf-8", "replace")
        self.name = name_of
        self.begin = on_begin
        self.end = function("end", None, long)
        self.begin_step = on_begin_step
        self.begin_communication = on_begin_communication
        self.mark = on_mark
        self.counter = on_counter
        self.hooked = function("hooked", None, u32)
        self.except_ = set_exception
        self.is_on = lambda kind: kinds[kind >> 3] >> (kind & 7) & 1 == 1
        self.switches_address = lambda: address
