# A mixed load for the allocator: hashes, strings, closures, regular expressions, sorting, threads, forks.
use strict;
use warnings;
use Config;
use Digest::MD5 'md5_hex';
use Data::Dumper;
use Storable 'dclone';

my $state = 42;
sub below { $state = ($state * 1103515245 + 12345) % 2147483648; return int($state / 65536) % shift }
sub show { my ($name, @what) = @_; printf "%-10s %s\n", $name, md5_hex(join "\0", @what); }

my %count;
$count{below(30000)} .= "x" x below(40) for 1 .. 200000;
delete @count{grep { $_ % 3 == 0 } keys %count};
show hash => map { "$_=$count{$_}" } sort keys %count;

my $text = join ' ', map { chr(97 + below(26)) x (1 + below(9)) } 1 .. 60000;
my %words;
$words{$1}++ while $text =~ /\b(\w+)\b/g;
(my $turned = $text) =~ s/(\w)(\w*)/$2$1/g;
show text => $turned, map { "$_:$words{$_}" } sort keys %words;

my $tree = {};
for (1 .. 40000) {
    my $node = $tree;
    $node = $node->{below(6)} //= {} for 1 .. 6;
    push @{$node->{list}}, $_;
}
$Data::Dumper::Sortkeys = $Data::Dumper::Indent = 1;
show tree => Dumper(dclone($tree));

my @rows = map { [below(1000), "row $_"] } 1 .. 100000;
show sort => map { "@$_" } sort { $a->[0] <=> $b->[0] || $a->[1] cmp $b->[1] } @rows;

my $big = '';
$big .= sprintf '%08x', $_ for 1 .. 400000;
substr($big, 8 * $_, 4) = 'abcdefgh' for 1 .. 2000;
show grow => $big;

my @closures = map { my $n = $_; my @held = (1 .. $n % 20); sub { $n + @held } } 1 .. 50000;
my $sum = 0;
$sum += $_->() for @closures;
show closure => $sum;

for my $child (1 .. 4) {
    my $pid = open(my $pipe, '-|') // die "fork: $!";
    if (!$pid) {
        my %mine = map { $_ => "child $child " x ($_ % 10) } 1 .. 20000;
        undef %count;
        print md5_hex(join ',', map { $mine{$_} } sort keys %mine);
        exit 0;
    }
    show fork => <$pipe>;
    close $pipe or die "child: $?";
}

if ($Config{useithreads}) {
    require threads;
    my @threads = map {
        my $n = $_;
        threads->create(sub { my @made = map { "$n-$_" x ($_ % 30) } 1 .. 30000; md5_hex(join '', reverse @made) })
    } 1 .. 4;
    show thread => map { $_->join } @threads;
}
