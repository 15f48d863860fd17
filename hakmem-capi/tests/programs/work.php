<?php
// A mixed load for the allocator: arrays, strings, regular expressions, extensions that bring libraries of
// their own, children.
$state = 42;
function below(int $n): int {
    global $state;
    $state = ($state * 1103515245 + 12345) % 2147483648;
    return intdiv($state, 65536) % $n;
}
function show(string $name, ...$what): void {
    printf("%-10s %s\n", $name, md5(implode("\0", array_map(fn($w) => is_string($w) ? $w : json_encode($w), $what))));
}

$count = [];
for ($i = 0; $i < 200000; $i++) {
    $key = "k" . below(30000);
    $count[$key] = ($count[$key] ?? '') . str_repeat('x', below(40));
}
foreach (array_keys($count) as $i => $key) if ($i % 3 == 0) unset($count[$key]);
ksort($count);
show('array', $count);

$text = implode(' ', array_map(fn() => str_repeat(chr(97 + below(26)), 1 + below(9)), range(1, 60000)));
preg_match_all('/\b(\w)(\w*)\b/u', $text, $matches);
show('regex', count($matches[0]), preg_replace('/(\w)(\w*)/', '$2$1', $text), preg_replace_callback('/a+/', fn($m) => strlen($m[0]), $text));

class Node { public array $next = []; public function __construct(public int $value) {} public function __destruct() { global $gone; $gone++; } }
$gone = 0;
for ($round = 0; $round < 5; $round++) {
    $root = new Node(0);
    for ($i = 1; $i < 20000; $i++) {
        $at = $root;
        for ($depth = 0; $depth < 4; $depth++) $at = $at->next[below(8)] ??= new Node($i);
        $at->next[] = $root;
    }
    unset($root, $at);
    gc_collect_cycles();
}
show('cycles', $gone);

show('zlib', gzuncompress(gzcompress($text, 9)), gzinflate(gzdeflate($text)), strlen(gzencode($text, 6)) > 1000);
show('iconv', iconv('UTF-8', 'UTF-16LE', $text), iconv('UTF-16LE', 'UTF-8', iconv('UTF-8', 'UTF-16LE', $text)));
show('hash', hash('sha512', $text), hash('xxh3', $text), crc32($text), base64_encode($text));
show('openssl', openssl_encrypt($text, 'aes-256-cbc', str_repeat('k', 32), 0, str_repeat('i', 16)), openssl_digest($text, 'sha3-256'));
show('sodium', sodium_crypto_generichash($text), bin2hex(sodium_crypto_secretbox('secret', str_repeat('n', 24), str_repeat('k', 32))));
show('fileinfo', (new finfo(FILEINFO_MIME))->buffer($text), (new finfo(FILEINFO_NONE))->buffer(gzencode('x')));
show('date', (new DateTimeImmutable('2026-01-31', new DateTimeZone('Europe/Paris')))->modify('+1 month')->format(DATE_ATOM));
show('serial', unserialize(serialize($count)));
$ffi = FFI::cdef('size_t strlen(const char *s); char *strdup(const char *s); void *malloc(size_t n); void free(void *p);');
for ($i = 0; $i < 1000; $i++) {
    $copy = $ffi->strdup("text $i");
    assert($ffi->strlen($copy) == strlen("text $i"));
    $ffi->free($copy);
    $ffi->free($ffi->malloc($i * 10));
}
show('ffi', FFI::string($ffi->strdup('kept')));

for ($child = 1; $child <= 3; $child++) {
    $pid = pcntl_fork();
    if ($pid == 0) {
        $mine = [];
        for ($i = 0; $i < 20000; $i++) $mine["child $child $i"] = str_repeat('y', $i % 50);
        exit(strlen(implode($mine)) % 256);
    }
    pcntl_waitpid($pid, $status);
    show("child $child", pcntl_wexitstatus($status));
}
show('popen', shell_exec('echo from the shell; expr 6 \* 7'));
