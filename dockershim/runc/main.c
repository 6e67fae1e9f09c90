/* dockershim-runc: an OCI runtime for an operator to register with the Docker Engine. It is runc, and gives a container
   whose annotation asks for it what the Engine API has no field for: a user namespace, a network namespace that is there
   before the container, or hooks and priorities.

   The engine calls it as it calls runc. For `create` it reads the bundle's config.json. Without such an annotation it
   does nothing. It puts hooks, I/O priority and scheduler of an annotation into config.json. For a network namespace it
   puts the path there. For a user namespace it
     - puts the namespace into config.json, a new one for an infra container, the infra container's for the others,
     - mounts the container's root file system anew, so that files of the node's user 0 are those of the namespace's,
     - has runc map the ids of the bind mounts that the annotation names.
   Then it becomes runc, with the same words. If something fails, the container is not made, and the engine shows our
   message. It keeps no files: the annotation is in config.json, so nothing can be lost between server and runtime.

   It is C without a library, so that one small file without dependencies runs on any distribution. */

#include "kernel.h"
#include "config.h"

enum { LARGEST_FILE = 64 << 20, LONGEST_PATH = 4096, MOST_LAYERS = 512, PAGE = 4096, LENGTH_OF_ID = 64 };

/* Nobody but root may look through the engine's folders, not even root of a user namespace, which runc is when it
   enters the root file system. So it gets that one bound here. */
#define OWN_FOLDER "/run/dockershim-runc"
#define OWN_ROOT OWN_FOLDER "/root"
#define OWN_LAYERS OWN_FOLDER "/layers"

/* ---- Texts. The compiler may call the first two. */

void *memset(void *to, int value, size_t length) {
    volatile char *p = to;
    while (length--) *p++ = (char)value;
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t length) {
    volatile char *p = to;
    const char *q = from;
    while (length--) *p++ = *q++;
    return to;
}

static size_t length_of(const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    return length;
}

static int same(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

static int begins(const char *text, const char *with) {
    while (*with && *text == *with) text++, with++;
    return !*with;
}

/* A text that is put together; too long a one is noticed when it is used. */
struct words {
    char text[8192];
    size_t length;
};

static void add(struct words *words, const char *more) {
    for (; *more; more++)
        if (words->length < sizeof words->text - 1) words->text[words->length++] = *more;
    words->text[words->length] = 0;
}

static void add_part(struct words *words, const char *more, size_t length) {
    for (; length && *more; more++, length--)
        if (words->length < sizeof words->text - 1) words->text[words->length++] = *more;
    words->text[words->length] = 0;
}

static void add_number(struct words *words, unsigned long value) {
    char digits[24];
    size_t i = sizeof digits;
    digits[--i] = 0;
    do digits[--i] = (char)('0' + value % 10);
    while (value /= 10);
    add(words, digits + i);
}

/* ---- Failing. */

static const char *log_path;

static void write_all(int fd, const char *bytes, size_t length) {
    while (length) {
        long written = call(SYS_write, fd, bytes, length);
        if (written <= 0 && written != -EINTR) return;
        if (written > 0) bytes += written, length -= (size_t)written;
    }
}

/* Say why there is no container, on stderr and where the engine looks for runc's last words, and end. */
static _Noreturn void fail(const char *what, const char *subject, long error) {
    static struct words words, line;
    add(&words, "dockershim-runc: ");
    add(&words, what);
    if (*subject) {
        add(&words, " ");
        add(&words, subject);
    }
    if (error) {
        add(&words, ": errno ");
        add_number(&words, (unsigned long)-error);
    }
    write_all(2, words.text, words.length);
    write_all(2, "\n", 1);
    long fd = log_path ? call(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (fd >= 0) {
        add(&line, "{\"level\":\"error\",\"msg\":\"");
        for (char *p = words.text; *p; p++) {
            int plain = *p >= ' ' && *p != '"' && *p != '\\';
            add_part(&line, plain ? p : "?", 1);
        }
        add(&line, "\",\"time\":\"1970-01-01T00:00:00Z\"}\n");
        write_all((int)fd, line.text, line.length);
    }
    call(SYS_exit, 1);
    __builtin_unreachable();
}

static long must(long answer, const char *what, const char *subject) {
    if (answer < 0) fail(what, subject, answer);
    return answer;
}

/* ---- Files. */

static char *memory(size_t size) {
    long at = call(SYS_mmap, 0, size, 3 /* read, write */, 0x22 /* private, anonymous */, -1, 0);
    if (at < 0 && at > -4096) fail("cannot get memory", "", at);
    return (char *)at;
}

/* The whole file, with a NUL behind it. Files of /proc do not tell their size, so there is room for the largest one; the kernel gives only the
   pages that are used. */
static struct span read_file(const char *path) {
    char *bytes = memory(LARGEST_FILE);
    size_t length = 0;
    int fd = (int)must(call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC), "cannot open", path);
    for (;;) {
        if (length == LARGEST_FILE) fail("too large:", path, 0);
        long got = call(SYS_read, fd, bytes + length, LARGEST_FILE - length);
        if (got == -EINTR) continue;
        if (must(got, "cannot read", path) == 0) break;
        length += (size_t)got;
    }
    call(SYS_close, fd);
    return (struct span){bytes, length};
}

static void write_file(const char *path, int flags, const char *bytes, size_t length) {
    int fd = (int)must(call(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC | flags, 0600), "cannot open", path);
    while (length) {
        long written = call(SYS_write, fd, bytes, length);
        if (written == -EINTR) continue;
        must(written, "cannot write", path);
        bytes += written, length -= (size_t)written;
    }
    must(call(SYS_close, fd), "cannot write", path);
}

static void status_of(int folder, const char *path, struct status *status) {
    must(call(SYS_newfstatat, folder, path, status, 0), "cannot look at", path);
}

static int open_folder(const char *path) {
    return (int)must(call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), "cannot open", path);
}

/* ---- User namespaces. */

static void write_map(const char *process, const char *name, unsigned long host, unsigned long size) {
    struct words path = {.length = 0}, map = {.length = 0};
    add(&path, process);
    add(&path, name);
    add(&map, "0 ");
    add_number(&map, host);
    add(&map, " ");
    add_number(&map, size);
    write_file(path.text, 0, map.text, map.length);
}

static int open_namespace(const char *path) {
    return (int)must(call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC), "cannot open", path);
}

/* A descriptor of a new user namespace. A process has to make one, and is needed no longer than we look at it. */
static int new_namespace(const struct request *request) {
    struct words process = {.length = 0}, path = {.length = 0};
    long pid = must(call(SYS_clone, CLONE_NEWUSER | SIGCHLD), "the kernel gives no user namespace", "");
    if (pid == 0) {
        call(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
        for (;;) call(SYS_ppoll, 0, 0, 0, 0);
    }
    add(&process, "/proc/");
    add_number(&process, (unsigned long)pid);
    write_map(process.text, "/uid_map", request->uid, request->size);
    write_map(process.text, "/gid_map", request->gid, request->size);
    add(&path, process.text);
    add(&path, "/ns/user");
    int fd = open_namespace(path.text);
    call(SYS_kill, pid, SIGKILL);
    while (call(SYS_wait4, pid, 0, 0, 0) == -EINTR) {}
    return fd;
}

/* The only line of a map of /proc has to be `0 host size`. */
static void check_map(const char *process, size_t length, const char *name, unsigned long host, unsigned long size) {
    struct words path = {.length = 0};
    unsigned long wanted[] = {0, host, size};
    add_part(&path, process, length);
    add(&path, name);
    struct span map = read_file(path.text);
    const char *p = map.at, *end = map.at + map.length;
    for (int i = 0; i < 3; i++) {
        unsigned long value = 0;
        while (p < end && *p == ' ') p++;
        for (; p < end && *p >= '0' && *p <= '9'; p++) value = value * 10 + (unsigned long)(*p - '0');
        if (value != wanted[i]) fail("the infra container has other ids than this container asks for:", path.text, 0);
    }
    if (end - p != 1) fail("the infra container has other ids than this container asks for:", path.text, 0);
}

/* The path of the infra container's user namespace, beside that of its network namespace, which dockerd has named. */
static void join_path(const struct request *request, struct words *path) {
    static const char proc[] = "/proc/", net[] = "/ns/net";
    const char *text = request->network.at;
    size_t length = request->network.length, process = length - (sizeof net - 1);
    int known = length > sizeof proc + sizeof net - 2 && length < 64 && begins(text, proc);
    for (size_t i = sizeof proc - 1; known && i < process; i++) known = text[i] >= '0' && text[i] <= '9';
    for (size_t i = 0; known && i < sizeof net - 1; i++) known = text[process + i] == net[i];
    if (!known) fail("the network namespace to join is not that of a process", "", 0);
    check_map(text, process, "/uid_map", request->uid, request->size);
    check_map(text, process, "/gid_map", request->gid, request->size);
    add_part(path, text, process);
    add(path, "/ns/user");
}

/* ---- The root file system. */

/* A copy of the mount at a folder, with ids mapped, that is nowhere in the tree of folders yet. */
static int mapped_copy(const char *folder, int namespace) {
    struct mount_attributes attributes = {.set = MOUNT_ATTR_IDMAP, .userns = (uint64_t)namespace};
    long tree = call(SYS_open_tree, AT_FDCWD, folder, OPEN_TREE_CLONE | O_CLOEXEC);
    must(tree, "cannot copy the mount of", folder);
    must(call(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes),
         "the kernel or the file system cannot map the ids of", folder);
    return (int)tree;
}

struct overlay {
    char *paths[MOST_LAYERS + 2]; /* lower layers, then upperdir and workdir if there are */
    size_t lower, all;
    const char *source;
    struct words options;
    unsigned long flags;
};

static const struct {
    const char *name;
    unsigned long flag;
} mount_flags[] = {{"ro", MS_RDONLY},     {"nosuid", MS_NOSUID},         {"nodev", MS_NODEV},
                   {"noexec", MS_NOEXEC}, {"noatime", MS_NOATIME},       {"nodiratime", MS_NODIRATIME},
                   {"relatime", MS_RELATIME}};

static const char *const kept_options[] = {
    "index=",   "redirect_dir=", "metacopy=",    "nfs_export=",    "xino=",       "uuid=",   "fsync=",
    "context=", "fscontext=",    "defcontext=",  "rootcontext=",   "verity=",     "userxattr", "volatile",
    "default_permissions",
};
static const char *const dropped_options[] = {"rw", "ro", "seclabel", "nouserxattr"};

/* The text up to a character, which becomes its end; `rest` is behind it. */
static char *cut(char **rest, char at) {
    char *begin = *rest, *p = begin;
    while (*p && *p != at) p++;
    *rest = *p ? p + 1 : p;
    *p = 0;
    return begin;
}

/* The next of the file system's options. The kernel writes labels of SELinux between quotes, with commas in them. Nowhere
   else does a quote mean anything: the rows of other mounts have names that tenants chose. */
static char *cut_option(char **rest) {
    char *begin = *rest, *p = begin;
    for (int quoted = 0; *p && (quoted || *p != ','); p++) quoted ^= *p == '"';
    *rest = *p ? p + 1 : p;
    *p = 0;
    return begin;
}

static void add_layer(struct overlay *overlay, char *path) {
    if (!*path) fail("the root file system has data-only layers", "", 0);
    if (overlay->lower == MOST_LAYERS) fail("the root file system has too many layers", "", 0);
    overlay->paths[overlay->lower++] = path;
}

static void parse_option(struct overlay *overlay, char *option, char **upper, char **work) {
    for (char *p = option; *p; p++)
        if (*p == '\\') fail("an option of the root file system has an escaped character:", option, 0);
    if (begins(option, "lowerdir="))
        for (char *rest = option + length_of("lowerdir="); *rest;) add_layer(overlay, cut(&rest, ':'));
    else if (begins(option, "lowerdir+="))
        add_layer(overlay, option + length_of("lowerdir+="));
    else if (begins(option, "upperdir="))
        *upper = option + length_of("upperdir=");
    else if (begins(option, "workdir="))
        *work = option + length_of("workdir=");
    else {
        for (size_t i = 0; i < sizeof dropped_options / sizeof *dropped_options; i++)
            if (same(option, dropped_options[i])) return;
        for (size_t i = 0; i < sizeof kept_options / sizeof *kept_options; i++)
            if (begins(option, kept_options[i])) {
                add(&overlay->options, ",");
                add(&overlay->options, option);
                return;
            }
        fail("an unknown option of the root file system:", option, 0);
    }
}

/* Read the overlay that is mounted at `root` from the lines of mountinfo (proc(5)); 0 if none is. */
static int find_overlay(const char *root, struct overlay *overlay) {
    struct span file = read_file("/proc/self/mountinfo");
    char *rest = (char *)file.at, *found = 0;
    while (*rest) {
        char *line = cut(&rest, '\n'), *fields = line;
        for (int i = 0; i < 4; i++) cut(&fields, ' ');
        if (same(cut(&fields, ' '), root)) found = fields;
    }
    if (!found) return 0;
    char *flags = cut(&found, ' ');
    while (*found && !same(cut(&found, ' '), "-")) {}
    if (!same(cut(&found, ' '), "overlay")) return 0;
    overlay->source = cut(&found, ' ');
    while (*flags) {
        const char *flag = cut(&flags, ',');
        for (size_t i = 0; i < sizeof mount_flags / sizeof *mount_flags; i++)
            if (same(flag, mount_flags[i].name)) overlay->flags |= mount_flags[i].flag;
    }
    char *upper = 0, *work = 0;
    while (*found) parse_option(overlay, cut_option(&found), &upper, &work);
    overlay->all = overlay->lower;
    if (upper && work) overlay->paths[overlay->all++] = upper, overlay->paths[overlay->all++] = work;
    if (!overlay->lower || !upper != !work) fail("the root file system has no layers:", root, 0);
    return 1;
}

/* The folder that has all layers. Layers with short names are ours, which the engine kept for a container that it starts
   again; their mount names the folder. Or dockerd's, below the folder of its driver, two above the root file system. */
static void find_base(const struct overlay *overlay, const char *root, struct words *base) {
    int absolute = overlay->paths[0][0] == '/', ours = !absolute && overlay->source[0] == '/';
    add(base, absolute ? overlay->paths[0] : ours ? overlay->source : root);
    for (int above = absolute ? 1 : ours ? 0 : 2; above; above--)
        while (base->length && base->text[--base->length] != '/') {}
    base->text[base->length] = 0;
    for (size_t i = 0; i < overlay->all; i++) {
        const char *path = overlay->paths[i];
        if ((*path == '/') != absolute) fail("the layers have paths of two kinds:", root, 0);
        while (absolute && base->length && !(begins(path, base->text) && path[base->length] == '/')) {
            while (base->text[--base->length] != '/') {}
            base->text[base->length] = 0;
        }
    }
    if (!base->length) fail("the layers are in no common folder:", root, 0);
}

/* Files that are made in an overlay belong to the user who mounted it until they get their owner, and the kernel refuses
   users that an id-mapped layer does not know. So we mount it as root of the namespace, with our own capabilities. */
static void mount_as(const struct request *request, const char *source, const char *root, unsigned long flags, const char *options) {
    struct capability_header header = {CAPABILITY_VERSION_3, 0};
    struct capability_sets own[2], kept[2];
    must(call(SYS_capget, &header, own), "cannot read the capabilities", "");
    for (int i = 0; i < 2; i++) kept[i] = own[i], kept[i].effective = kept[i].permitted;
    call(SYS_setfsgid, request->gid);
    call(SYS_setfsuid, request->uid);
    must(call(SYS_capset, &header, kept), "cannot set the capabilities", "");
    long mounted = call(SYS_mount, source, root, "overlay", flags, options);
    call(SYS_setfsuid, 0);
    call(SYS_setfsgid, 0);
    must(call(SYS_capset, &header, own), "cannot set the capabilities", "");
    must(mounted, "the kernel cannot mount an overlay of id-mapped layers (Linux 5.19 or newer can) at", root);
}

/* The options of an overlay of the same layers, by paths below `base`. `tree` is a mapped copy of the mount there. */
static void put_options(const struct overlay *overlay, const struct words *base, int tree, struct words *options) {
    int absolute = overlay->paths[0][0] == '/', plain = open_folder(base->text);
    for (size_t i = 0; i < overlay->all; i++) {
        const char *path = overlay->paths[i] + (absolute ? base->length + 1 : 0);
        struct status one, other;
        status_of(tree, path, &one);
        status_of(plain, path, &other);
        if (one.inode != other.inode || one.device != other.device)
            fail("a layer is on another file system than", base->text, 0);
        add(options, i == 0 ? "lowerdir=" : i < overlay->lower ? ":" : i == overlay->lower ? ",upperdir=" : ",workdir=");
        add(options, path);
    }
    add(options, overlay->options.text);
    if (options->length >= PAGE || overlay->options.length >= PAGE)
        fail("the paths of the layers are too long in", base->text, 0);
    call(SYS_close, plain);
}

static int mount_namespace(void) { return open_namespace("/proc/self/ns/mnt"); }

static void enter(int mounts) { must(call(SYS_setns, mounts, CLONE_NEWNS), "cannot enter a mount namespace", ""); }

static void attach(int tree, const char *path) {
    must(call(SYS_move_mount, tree, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH), "cannot mount at", path);
}

static void unshare_mounts(void) { must(call(SYS_unshare, CLONE_NEWNS), "cannot make a mount namespace", ""); }

/* Mount an overlay of layers in `tree` at OWN_ROOT. Before Linux 6.15 the layers have to be attached somewhere; this is
   in a namespace of our own, so nobody sees them, and nothing stays if we are killed. */
static void mount_layers(const struct request *request, int tree, const char *base, unsigned long flags,
                         const char *options) {
    attach(tree, OWN_LAYERS);
    must(call(SYS_fchdir, tree), "cannot enter", base);
    mount_as(request, base, OWN_ROOT, flags, options);
    must(call(SYS_chdir, "/"), "cannot enter", "/");
    must(call(SYS_umount2, OWN_LAYERS, MNT_DETACH), "cannot unmount", OWN_LAYERS);
}

static void make_folder(const char *path) {
    long made = call(SYS_mkdirat, AT_FDCWD, path, 0711);
    if (made != -EEXIST) must(made, "cannot make", path);
}

/* Make our folder, once after a boot: a mount of its own that is private, so what is mounted in it below stays in the
   mount namespace of one container's runc. */
static void make_own_folder(void) {
    struct status own, above;
    make_folder(OWN_FOLDER);
    int fd = (int)must(call(SYS_openat, AT_FDCWD, OWN_FOLDER, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
                       "cannot open", OWN_FOLDER);
    must(call(SYS_flock, fd, LOCK_EX), "cannot lock", OWN_FOLDER);
    status_of(AT_FDCWD, OWN_FOLDER, &own);
    status_of(AT_FDCWD, OWN_FOLDER "/..", &above);
    if (own.device == above.device) {
        must(call(SYS_mount, "dockershim-runc", OWN_FOLDER, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
                  "mode=711,nr_inodes=16,size=4k"),
             "cannot mount", OWN_FOLDER);
    }
    /* Again each time: a process that was killed may have done only half of it. */
    must(call(SYS_mount, "", OWN_FOLDER, "", MS_PRIVATE, ""), "cannot make private", OWN_FOLDER);
    make_folder(OWN_ROOT);
    make_folder(OWN_LAYERS);
    call(SYS_close, fd);
}

/* Replace the engine's overlay by one of the same layers with ids mapped. What the container writes has ids on the disk
   that do not depend on the mapping, so the engine's store stays as it knows it. */
static void replace_overlay(const struct request *request, const char *root, struct overlay *overlay, int namespace) {
    static struct words base, options;
    find_base(overlay, root, &base);
    int tree = mapped_copy(base.text, namespace), nodes = mount_namespace();
    put_options(overlay, &base, tree, &options);
    /* First, as two overlays must not write to one layer. */
    must(call(SYS_umount2, root, MNT_DETACH), "cannot unmount", root);
    unshare_mounts();
    mount_layers(request, tree, base.text, overlay->flags, options.text);
    int own = mount_namespace();
    long copy = must(call(SYS_open_tree, AT_FDCWD, OWN_ROOT, OPEN_TREE_CLONE | O_CLOEXEC), "cannot copy", OWN_ROOT);
    enter(nodes);
    attach((int)copy, root);
    enter(own);
}

/* Put the root file system at OWN_ROOT, in a mount namespace for runc. */
static void make_root(const struct request *request, const char *root, int namespace) {
    static struct overlay overlay;
    static char folder[LONGEST_PATH];
    must(call(SYS_getcwd, folder, sizeof folder), "cannot find the working directory", "");
    make_own_folder();
    if (find_overlay(root, &overlay)) {
        replace_overlay(request, root, &overlay, namespace);
    } else {
        int tree = mapped_copy(root, namespace);
        unshare_mounts();
        attach(tree, OWN_ROOT);
    }
    must(call(SYS_mount, "", OWN_ROOT, "", MS_PRIVATE, ""), "cannot make private", OWN_ROOT);
    /* The folder as the new namespace has it: we left it, or entered it again, at its root. */
    must(call(SYS_chdir, folder), "cannot enter", folder);
}

/* ---- Commands. */

/* Give the pipes of the output to root of the namespace, or no process could open /dev/stdout again. */
static void own_pipes(const struct request *request) {
    for (int fd = 0; fd < 3; fd++) {
        struct status status;
        if (call(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) == 0 && (status.mode & S_IFMT) == S_IFIFO)
            must(call(SYS_fchown, fd, request->uid, request->gid), "cannot give away the output", "");
    }
}

static void replace_config(const struct words *path, const char *bytes, size_t length) {
    static struct words new_path;
    add(&new_path, path->text);
    add(&new_path, ".dockershim");
    write_file(new_path.text, O_CREAT | O_TRUNC | O_NOFOLLOW, bytes, length);
    must(call(SYS_renameat, AT_FDCWD, new_path.text, AT_FDCWD, path->text), "cannot replace", path->text);
}

static void give_users(struct span config, const struct request *request, const struct words *path) {
    static struct words root, user;
    add_part(&root, request->root.at, request->root.length);
    for (size_t i = 0; i < root.length; i++)
        if (root.text[i] == '\\') fail("the root file system's path has an escaped character:", root.text, 0);
    if (root.text[0] != '/' || root.length != request->root.length || root.length >= LONGEST_PATH)
        fail("the root file system has no absolute path:", root.text, 0);
    if (request->network.length) join_path(request, &user);

    size_t room = config.length + (1 << 20), length;
    char *amended = memory(room);
    const char *problem = amend(config, request, OWN_ROOT, user.text, amended, room, &length);
    if (problem) fail(problem, "", 0);
    make_root(request, root.text, user.length ? open_namespace(user.text) : new_namespace(request));
    replace_config(path, amended, length);
    own_pipes(request);
}

/* The id of a container, as the engine makes them, ends the path: the engine tells it only when the container is there,
   and the annotation is older. */
static void give_network(struct span config, const struct request *request, const struct words *path, const char *id) {
    static struct words network;
    size_t digits = 0, room = config.length + (1 << 10), length;
    while ((id[digits] >= '0' && id[digits] <= '9') || (id[digits] >= 'a' && id[digits] <= 'f')) digits++;
    if (digits != LENGTH_OF_ID || id[digits]) fail("a container that joins a network namespace has no id:", id, 0);
    add_part(&network, request->prefix.at, request->prefix.length);
    add(&network, id);
    int fd = open_namespace(network.text);
    if (call(SYS_ioctl, fd, NS_GET_NSTYPE) != CLONE_NEWNET) fail("is not a network namespace:", network.text, 0);
    call(SYS_close, fd);
    char *amended = memory(room);
    const char *problem = join_network(config, request, network.text, amended, room, &length);
    if (problem) fail(problem, "", 0);
    replace_config(path, amended, length);
}

/* Whether an annotation has members for config.json, which has them then. */
static int add_to(struct span *config) {
    size_t room = 2 * config->length + 1, length; /* a member is not longer than its digits */
    char *added = memory(room), *work = memory(room);
    const char *problem = add_members(*config, work, added, room, &length);
    if (problem) fail(problem, "", 0);
    if (length) *config = (struct span){added, length};
    return length > 0;
}

static void create(const char *bundle, const char *id, int may_amend) {
    static struct words path;
    struct request request;
    add(&path, bundle);
    add(&path, "/config.json");
    struct span config = read_file(path.text);
    int changed = add_to(&config);
    const char *problem = read_request(config, &request);
    if (problem) fail(problem, "", 0);
    if (!request.users && !request.early && !changed) return;
    if (!may_amend) fail("a container for which config.json is changed cannot be restored from a checkpoint", "", 0);
    if (request.users)
        give_users(config, &request, &path);
    else if (request.early)
        give_network(config, &request, &path, id);
    else
        replace_config(&path, config.at, config.length);
}

/* A command in a container: its pipes are new. runc's log tells where the bundle is; without it only /dev/stdout cannot
   be opened anew. */
static void exec(void) {
    static struct words path;
    struct request request;
    struct status status;
    if (!log_path) return;
    add(&path, log_path);
    while (path.length && path.text[path.length - 1] != '/') path.length--;
    path.text[path.length] = 0;
    add(&path, "config.json");
    if (call(SYS_newfstatat, AT_FDCWD, path.text, &status, 0) < 0) return;
    read_request(read_file(path.text), &request); /* it finds our user namespace, which is no problem here */
    if (request.users) own_pipes(&request);
}

/* `dockershim-runc --dockershim-probe FOLDER ONE OTHER`: whether kernel and file system can what `create` needs. ONE and
   OTHER are folders in FOLDER, which belong to the node's root. */
static _Noreturn void probe(const char *folder, const char *one, const char *other) {
    static struct words options;
    struct request request = {.uid = 1 << 16, .gid = 1 << 16, .size = 1 << 16};
    struct status status;
    make_own_folder();
    int tree = mapped_copy(folder, new_namespace(&request));
    unshare_mounts();
    add(&options, "lowerdir=");
    add(&options, one);
    add(&options, ":");
    add(&options, other);
    mount_layers(&request, tree, folder, MS_RDONLY, options.text);
    status_of(AT_FDCWD, OWN_ROOT, &status);
    if (status.uid != request.uid || status.gid != request.gid) fail("an overlay does not map the ids of", folder, 0);
    write_all(1, "user namespaces\n", 16);
    call(SYS_exit, 0);
    __builtin_unreachable();
}

/* `dockershim-runc --dockershim-features`: what this version reads annotations for, beside user namespaces. */
static _Noreturn void tell_features(void) {
    static const char features[] = "network namespaces\nmembers\nunified\n";
    write_all(1, features, sizeof features - 1);
    call(SYS_exit, 0);
    __builtin_unreachable();
}

static const char *variable(char **environment, const char *name) {
    for (; *environment; environment++)
        if (begins(*environment, name) && (*environment)[length_of(name)] == '=') return *environment + length_of(name) + 1;
    return 0;
}

/* Become runc, the first in PATH that is not this very program. */
static _Noreturn void become_runc(char **words, char **environment) {
    const char *path = variable(environment, "PATH");
    struct status own, other;
    long error = -ENOENT;
    status_of(AT_FDCWD, "/proc/self/exe", &own);
    for (const char *p = path && *path ? path : "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"; *p;) {
        struct words program = {.length = 0};
        size_t length = 0;
        while (p[length] && p[length] != ':') length++;
        add_part(&program, p, length);
        add(&program, "/runc");
        p += length + (p[length] == ':');
        if (*program.text != '/' || call(SYS_newfstatat, AT_FDCWD, program.text, &other, 0) < 0) continue;
        if (other.inode == own.inode && other.device == own.device) continue;
        words[0] = program.text;
        error = call(SYS_execve, program.text, words, environment);
    }
    fail("cannot run runc, looked for in PATH", "", error);
}

/* The value of an option, given as `--name value` or `--name=value`. */
static const char *option(char **words, const char *name) {
    for (words++; *words; words++) {
        if (same(*words, name)) return words[1];
        if (begins(*words, name) && (*words)[length_of(name)] == '=') return *words + length_of(name) + 1;
    }
    return 0;
}

/* Whether a word is among them. We do not know which options of runc take a value, so each word may be the command. */
static int has(char **words, const char *word) {
    for (words++; *words; words++)
        if (same(*words, word)) return 1;
    return 0;
}

__attribute__((used)) _Noreturn void begin(long *stack) {
    long count = *stack;
    char **words = (char **)(stack + 1), **environment = words + count + 1;
    if (count == 5 && same(words[1], "--dockershim-probe")) probe(words[2], words[3], words[4]);
    if (count == 2 && same(words[1], "--dockershim-features")) tell_features();
    log_path = option(words, "--log");
    const char *bundle = option(words, "--bundle");
    if (!bundle) bundle = option(words, "-b");
    int restored = has(words, "restore");
    if (restored || has(words, "create") || has(words, "run"))
        create(bundle ? bundle : ".", words[count - 1], !restored);
    else if (has(words, "exec"))
        exec();
    become_runc(words, environment);
}
